# Written by tools/stubs.py.
from hvdlite.compression import Compressor as Compressor
from hvdlite.compression import NoneCompressor as NoneCompressor
from hvdlite.tensorflow.compression import BF16Compressor as BF16Compressor
from hvdlite.tensorflow.compression import Compression as Compression
from hvdlite.tensorflow.compression import FP16Compressor as FP16Compressor
