"""mqdb's definition of the RocketMQ 5 protocol agrees with that in RocketMQ's own Python SDK."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from google.protobuf.descriptor_pb2 import DescriptorProto, EnumDescriptorProto, FileDescriptorProto, FileDescriptorSet

from mqdb.grpc.wire import rocketmq_pb2

ROOT = Path(__file__).resolve().parents[2]
PROTO = "mqdb/grpc/wire/rocketmq.proto"
OURS = ".mqdb.rocketmq."
OFFICIAL = ".apache.rocketmq.v2."

# In a process of its own: the SDK makes a folder for its log in the home, and starts threads.
PRINT_DESCRIPTORS = """
import sys
from google.protobuf.descriptor_pb2 import FileDescriptorSet
from rocketmq.grpc_protocol import definition_pb2, service_pb2
descriptors = FileDescriptorSet()
for module in (definition_pb2, service_pb2):
    module.DESCRIPTOR.CopyToProto(descriptors.file.add())
sys.stdout.buffer.write(descriptors.SerializeToString())
"""

#: The name of a message or an enum, and of a field or a value; its number, and for a field its type and label.
Part = tuple[str, str, int, str, int, int, bool]


def official_files(home: Path) -> FileDescriptorSet:
    command = [sys.executable, "-c", PRINT_DESCRIPTORS]
    done = subprocess.run(command, env={"HOME": str(home)}, capture_output=True, check=True)
    return FileDescriptorSet.FromString(done.stdout)


def our_file() -> FileDescriptorProto:
    file = FileDescriptorProto()
    rocketmq_pb2.DESCRIPTOR.CopyToProto(file)
    return file


def parts(file: FileDescriptorProto) -> Iterator[Part]:
    """Every field and value of a file, in names without the package."""
    for message in file.message_type:
        yield from parts_of_message(message, "")
    for enum in file.enum_type:
        yield from parts_of_enum(enum, "")


def parts_of_message(message: DescriptorProto, outer: str) -> Iterator[Part]:
    name = f"{outer}{message.name}"
    yield name, "", 0, "message", 0, 0, message.options.map_entry
    for field in message.field:
        # A field that is marked optional is alone in a oneof that protoc makes; its name says nothing.
        has_group = field.HasField("oneof_index") and not field.proto3_optional
        group = message.oneof_decl[field.oneof_index].name if has_group else ""
        kind = field.type_name.removeprefix(OURS).removeprefix(OFFICIAL)
        yield name, field.name, field.number, f"{kind}:{group}", field.type, field.label, field.proto3_optional
    for nested in message.nested_type:
        yield from parts_of_message(nested, f"{name}.")
    for enum in message.enum_type:
        yield from parts_of_enum(enum, f"{name}.")


def parts_of_enum(enum: EnumDescriptorProto, outer: str) -> Iterator[Part]:
    name = f"{outer}{enum.name}"
    yield name, "", 0, "enum", 0, 0, False
    for value in enum.value:
        yield name, value.name, value.number, "", 0, 0, False


def test_every_message_field_and_value_is_rocketmqs(tmp_path: Path) -> None:
    official = {part for file in official_files(tmp_path).file for part in parts(file)}
    ours = set(parts(our_file()))

    assert len(ours) > 300
    assert ours - official == set()


def test_the_module_is_what_protoc_makes_of_the_file(tmp_path: Path) -> None:
    made = tmp_path / "made"
    command = [sys.executable, "-m", "grpc_tools.protoc", f"-I{ROOT}", f"--descriptor_set_out={made}", PROTO]
    subprocess.run(command, check=True, cwd=ROOT)
    [file] = FileDescriptorSet.FromString(made.read_bytes()).file
    for message in file.message_type:
        forget_json_names(message)

    assert file == our_file()


def forget_json_names(message: DescriptorProto) -> None:
    """Drop the JSON names, which protoc leaves out of modules because they follow from the field names."""
    for field in message.field:
        field.ClearField("json_name")
    for nested in message.nested_type:
        forget_json_names(nested)
