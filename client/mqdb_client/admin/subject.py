"""Subject: the common base of the subjects of `Admin`."""

from inspect import isfunction

from mqdb.common.argument_types import checked
from mqdb_client.admin.broker_access import BrokerAccess


class Subject:
    """Shows and changes one aspect of a broker. Its public methods check the types of their arguments."""

    def __init__(self, access: BrokerAccess) -> None:
        self._access = access

    def __init_subclass__(cls) -> None:
        for name, method in list(vars(cls).items()):
            if isfunction(method) and not name.startswith("_"):
                setattr(cls, name, checked(method))
            elif isinstance(method, staticmethod):
                setattr(cls, name, staticmethod(checked(method.__func__)))
