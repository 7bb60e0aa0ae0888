"""Lists what forward and loss can reach in Python, so that one pass can be compared with the next, and undone.

Reached are the attributes of all modules and their classes, what these hold, the variables that functions close over,
and the globals that the user's own functions name. Each value is a word under a path; of tensors, type and shape alone.
"""

from __future__ import annotations

import collections
import contextlib
import contextvars
import functools
import gc
import inspect
import io
import itertools
import random
import threading
import types
import warnings
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from planner.capture.live_bytes import storage_of
from planner.capture.traced_graph import file_of, names_in, stored_in
from planner.capture.untraceable import (
    NOTHING,
    content,
    entries,
    fill,
    is_data,
    refill,
    set_attribute,
    set_back,
    write,
)
from planner.workload import is_users

CARRIED = "a tensor, by register_buffer in __init__, for what one step leaves to the next"
OF_NORM = "one momentum; or a norm of your own that moves its statistics by a buffer"
MOST_BYTES = 10_000_000  # of an object that shows its memory
MOST = 200_000  # values that are listed, and entries of one list or dictionary that are looked at: a hundredth of it
WORDS = (bool, int, float, complex, str, bytes, bytearray, type(None), random.SystemRandom)
PLAIN = (*WORDS, torch.dtype, torch.device, torch.Size, np.generic)
PASSING = ("logging", "threading", "_thread", "_io", "io", "re", "weakref", "abc", "inspect", "socket")
NUMBERS = (np.ndarray, random.Random, np.random.RandomState, np.random.Generator, torch.Generator)
LIBRARIES = ("torch", "numpy", "builtins")
FUNCTIONS = (types.FunctionType, types.BuiltinFunctionType)
WITH_CODE = (types.FunctionType, functools._lru_cache_wrapper)
Undo = Callable[[], object]


class Reachable:
    """Lists what a module and its loss can reach, by path, as it is when this is made."""

    def __init__(self, module: nn.Module, loss: object, *, to_undo: bool = True) -> None:
        self._to_undo = to_undo
        self.words: dict[str, str] = {}
        self.paths: dict[int, str] = {}  # of tensors, by their storages
        self._tensors: dict[str, tuple[Tensor, int]] = {}  # with the number of times that each was written
        self._undo: list[Undo] = []
        self._met: dict[int, object] = {}  # kept alive, so that no other value gets the same number
        self.of_loss: list[str] = []  # parameters that train and that the loss alone holds
        self._of_module: frozenset[str] = frozenset()
        for self._in_loss, first in ((False, ("", module)), (True, ("loss", loss))):
            self._of_module = frozenset(self.words)
            self._open: list[tuple[str, object]] = [first]
            while self._open and len(self._met) < MOST:
                self._visit(*self._open.pop())

    def undo(self) -> None:
        """Puts back what was reachable as it was, but for generators, which Python cannot wind back."""
        for put_back in self._undo:
            put_back()

    def changes(self, later: Reachable) -> list[str]:
        """Returns what is another word by now, each as "path (was, then is)", the shortest paths first.

        Args: `later` lists the same module after some passes.
        """
        paths = dict.fromkeys((*self.words, *later.words))
        found = [path for path in paths if self.words.get(path) != later.words.get(path)]
        was, now = ({path: each.words.get(path, "nothing") for path in found} for each in (self, later))
        return [f"'{path}' ({was[path]}, then {now[path]})" for path in sorted(found, key=len)]

    def unregistered(self, module: nn.Module) -> list[str]:
        """Returns the paths of tensors in containers and other objects that are no parameter or buffer of a module."""
        own = {id(x) for x in (*module.parameters(), *module.buffers())}
        return [path for path, (x, _) in self._tensors.items() if "[" in path and id(x) not in own]

    def of_loss_alone(self, path: str) -> bool:
        """Says whether the loss reaches a value and the module does not."""
        return path in self.words and path not in self._of_module

    def is_parameter(self, path: str) -> bool:
        return path in self._tensors and isinstance(self._tensors[path][0], nn.Parameter)

    def written(self, later: Reachable) -> list[str]:
        """Returns the paths of tensors that were replaced or written until `later`."""
        known, found = self._tensors, later._tensors.items()
        return [
            path
            for path, (x, n) in found
            if path in known and not (known[path][0] is x and known[path][1] == n)
        ]

    def _visit(self, path: str, value: object) -> None:
        if isinstance(value, PLAIN):
            said = repr(value)
            self.words[path] = said if len(said) < 60 else f"{said:.40}.. {hash(said)}"
            return
        if id(value) in self._met or isinstance(value, types.ModuleType):
            return
        self._met[id(value)] = value
        if isinstance(value, Tensor):
            self._tensor(path, value)
        elif isinstance(value, nn.Module):
            self._module(path, value)
        elif isinstance(value, type):
            self._class(value)
        elif isinstance(value, NUMBERS):
            self._numbers(path, value)
        elif isinstance(value, Mapping | list | tuple | collections.deque | set | frozenset):
            self._container(path, value)
        elif isinstance(value, functools.partial | types.MethodType | types.FunctionType):
            self._function(path, value)
        elif isinstance(value, Iterator):
            self._iterator(path, value)
        elif isinstance(value, contextvars.ContextVar):
            self._variable(path, value)
        else:
            self._object(path, value)

    def _tensor(self, path: str, tensor: Tensor) -> None:
        if self._in_loss and isinstance(tensor, nn.Parameter) and tensor.requires_grad:
            self.of_loss.append(path)
        self.words[path] = f"{str(tensor.dtype).removeprefix('torch.')} of {list(tensor.shape)}"
        if tensor.is_inference():  # nobody can write it
            return
        if type(tensor) in (Tensor, nn.Parameter):  # those of other kinds hold what is torch's own
            self._undo.append(functools.partial(refill, vars(tensor), dict(vars(tensor))))
            told = {key: x for key, x in vars(tensor).items() if key[:1] != "_" and key != "persistent"}
            self._open += [(f"{path}.{key}", x) for key, x in told.items()]
        self._tensors[path] = tensor, tensor._version
        if tensor.layout != torch.strided:
            return
        self.paths.setdefault(storage_of(tensor), path)
        if self._to_undo and not isinstance(tensor, nn.Parameter):
            kept, version = tensor.detach().clone(), tensor._version
            self._undo.append(lambda: tensor._version == version or tensor.detach().copy_(kept))

    def _module(self, path: str, module: nn.Module) -> None:
        held = vars(module)
        self._undo.append(functools.partial(refill, held, dict(held)))
        for key, value in held.items():
            if key in ("_parameters", "_buffers", "_modules"):
                self._undo.append(functools.partial(refill, value, dict(value)))
                self._open += [(f"{path}.{name}".removeprefix("."), x) for name, x in value.items()]
            elif key != "training" and (value is not None or not key.startswith("_")):
                self._open.append((f"{path}.{key}".removeprefix("."), value))
        self._open.append((path, type(module)))

    def _class(self, kind: type) -> None:
        for base in kind.__mro__:
            if base.__module__.partition(".")[0] in (*PASSING, *LIBRARIES):
                continue
            data = {key: x for key, x in vars(base).items() if not key.startswith("__") and is_data(x)}
            self._undo.append(functools.partial(set_back, base, data))
            self._open += [(f"{base.__qualname__}.{key}", x) for key, x in data.items()]
            for x in vars(base).values():
                code = getattr(inspect.unwrap(x := getattr(x, "__func__", x)), "__code__", None)
                if isinstance(x, WITH_CODE) and code is not None and is_users(code.co_filename):
                    self._open.append((f"{base.__qualname__}.{x.__name__}", x))

    def _numbers(self, path: str, value: Any) -> None:
        undo: Undo | None = None
        state: object
        if isinstance(value, np.ndarray):
            kept = value.copy()
            state = value.dtype, value.shape, value.tobytes() if value.dtype != object else 0
            undo = functools.partial(np.copyto, value, kept) if value.flags.writeable else None
        elif isinstance(value, torch.Generator):
            state, drawn = value.get_state().numpy().tobytes(), value.get_state()
            undo = functools.partial(value.set_state, drawn)
        elif isinstance(value, random.Random):
            state = value.getstate()
            undo = functools.partial(value.setstate, state)
        else:
            state = repr(value.get_state() if hasattr(value, "get_state") else value.bit_generator.state)
        self.words[path] = f"{type(value).__name__} {hash(state)}"
        self._undo += [undo] if undo else []

    def _container(self, path: str, value: Any) -> None:
        held = entries(value)
        self.words[path] = f"{type(value).__name__} of {len(held)}"
        if isinstance(value, dict | list | collections.deque | set):
            kept = dict(held) if isinstance(value, dict) else [x for _, x in held]
            self._undo.append(functools.partial(refill, value, kept))
        if len(held) >= MOST // 100:
            return
        if isinstance(value, set | frozenset):
            self.words[path] += f" {hash(repr(sorted(repr(x) for _, x in held)))}"
        else:
            self._open += [(f"{path}[{key!r:.40}]", x) for key, x in held]

    def _function(self, path: str, value: Any) -> None:
        if isinstance(value, functools.partial):
            self._open += [(path, value.func), (f"{path}.args", (value.args, value.keywords))]
        elif isinstance(value, types.MethodType):
            self._open += [(path, value.__func__), (f"{path}.__self__", value.__self__)]
        else:
            for name, cell in zip(value.__code__.co_freevars, value.__closure__ or (), strict=True):
                with_value = content(cell)
                self._undo.append(functools.partial(fill, cell, with_value))
                self._open += [(f"{path}.{name}", x) for x in with_value]
            self._open += [(f"{path}.defaults", x) for x in (value.__defaults__, value.__kwdefaults__) if x]
            self._undo.append(functools.partial(refill, vars(value), dict(vars(value))))
            self._open += [(f"{path}.{key}", x) for key, x in vars(value).items()]
            if is_users(value.__code__.co_filename):
                self._globals(value)

    def _globals(self, function: types.FunctionType) -> None:
        """Visits the globals that a function of the user's names, and what it names in other files of the user's."""
        names = set(names_in(function.__code__))
        spaces = [function.__globals__]
        for name in names & function.__globals__.keys():
            x = function.__globals__[name]
            if isinstance(x, types.ModuleType) and is_users(getattr(x, "__file__", None) or "<"):
                spaces.append(vars(x))
            elif isinstance(x, types.ModuleType):  # of a library: what the function itself puts there
                for key in names.intersection(stored_in(function.__code__)):
                    self._open += [(f"{name}.{key}", vars(x)[key])] if key in vars(x) else []
        for space in spaces:
            for name in sorted(names & space.keys()):
                if not name.startswith("__") and not isinstance(space[name], types.ModuleType):
                    self._undo.append(functools.partial(space.__setitem__, name, space[name]))
                    self._open.append((f"{file_of(space)}.{name}", space[name]))

    def _iterator(self, path: str, value: Iterator[object]) -> None:
        self.words[path] = repr(value) if isinstance(value, itertools.count) else type(value).__name__
        if isinstance(value, types.GeneratorType):
            self.words[path] += f" at {value.gi_frame.f_lasti if value.gi_frame else 'its end'}"
            self._open.append((path, dict(value.gi_frame.f_locals) if value.gi_frame else {}))
            return
        if isinstance(value, io.IOBase):
            with contextlib.suppress(OSError, ValueError):  # of a terminal, or a file that is closed
                self.words[path] = f"a file at {value.tell()}"
            return
        if vars_of := getattr(value, "__dict__", None):
            self._open.append((path, vars_of))
        with warnings.catch_warnings(), contextlib.suppress(Exception):  # not every one tells where it is
            warnings.simplefilter("ignore", DeprecationWarning)
            self._open.append((f"{path}.state", value.__reduce__()))

    def _variable(self, path: str, value: contextvars.ContextVar[object]) -> None:
        if (
            held := value.get(NOTHING)
        ) is not NOTHING:  # one that was never set cannot be set back to nothing
            self._undo.append(lambda: value.get(NOTHING) is held or value.set(held))
            self._open.append((path, held))

    def _object(self, path: str, value: object) -> None:
        kind = type(value)
        if kind.__module__.partition(".")[0] in (*PASSING, *LIBRARIES[:2]) and kind is not threading.local:
            return
        self._memory(path, value)
        held = getattr(value, "__dict__", None)
        if isinstance(held, dict):
            self._undo.append(functools.partial(refill, held, dict(held)))
            self._open += [(f"{path}.{key}", x) for key, x in held.items()]
        for base in kind.__mro__:
            slots = vars(base).get("__slots__", ())
            for key in (slots,) if isinstance(slots, str) else slots:
                if hasattr(value, key):
                    self._undo.append(functools.partial(set_attribute, value, key, getattr(value, key)))
                    self._open.append((f"{path}.{key}", getattr(value, key)))
        self._open.append((path, kind))

    def _memory(self, path: str, value: Any) -> None:
        """Lists what an object holds in C: its bytes where it shows them, and what a cache of calls has returned."""
        if isinstance(value, functools._lru_cache_wrapper):
            held = [list(x.values()) if isinstance(x, dict) else x for x in gc.get_referents(value)]
            self._open.append((f"{path}.cache", held))
        with contextlib.suppress(TypeError, ValueError, BufferError):
            if (seen := memoryview(value)).nbytes < MOST_BYTES:
                kept = seen.tobytes()
                self.words[path] = f"{type(value).__name__} {hash(kept)}"
                self._undo.append(functools.partial(write, value, kept))
