"""The errors that programs written for Horovod catch, under the names that they use."""


class HorovodInternalError(RuntimeError):
    """A collective could not finish: ranks disagree, a rank has left, or a wait was given up.

    `shutdown()` followed by `init()` makes the same processes usable again.
    """


class HostsUpdatedInterrupt(RuntimeError):
    """The set of hosts changed during elastic training.

    `skip_sync` says that no state needs to be synchronised, because no host was removed.
    """

    def __init__(self, skip_sync: bool = False):
        super().__init__("the set of hosts has changed")
        self.skip_sync = skip_sync


class HorovodVersionMismatchError(ImportError):
    """A saved or running part was made by another version than the one installed."""

    def __init__(self, name: str, version: str, installed_version: str):
        super().__init__(f"{name}: made with {version}, but {installed_version} is installed")
        self.name = name
        self.version = version
        self.installed_version = installed_version


class NotInitializedError(ValueError):
    """Something was asked of the runtime before `init()`, which Horovod answers with ValueError."""

    def __init__(self) -> None:
        super().__init__("hvdlite has not been initialized; call hvd.init() first")
