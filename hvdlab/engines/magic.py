def px(line, cell=None):
    raise NotImplementedError
