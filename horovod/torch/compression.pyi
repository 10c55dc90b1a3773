# Written by tools/stubs.py.
from hvdlite.compression import Compressor as Compressor
from hvdlite.compression import NoneCompressor as NoneCompressor
from hvdlite.torch.compression import BF16Compressor as BF16Compressor
from hvdlite.torch.compression import Compression as Compression
from hvdlite.torch.compression import FP16Compressor as FP16Compressor
