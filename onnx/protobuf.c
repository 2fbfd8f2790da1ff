/* SPDX-License-Identifier: Apache-2.0 */
/* What protoc-c's code calls of protobuf-c, which is opened at the first export. */
#include <protobuf-c/protobuf-c.h>

#include "onnx/protobuf.h"
#include "tensor/late.h"

#define FUNCTIONS(F) F(protobuf_c_message_, get_packed_size) F(protobuf_c_message_, pack) F(protobuf_c_message_, pack_to_buffer) \
    F(protobuf_c_message_, unpack) F(protobuf_c_message_, free_unpacked)
static struct { FUNCTIONS(TREK_LATE_FUNCTION) } lib;
static const char *const names[] = { FUNCTIONS(TREK_LATE_NAME) };
static trek_late library = { .variable = "TREK_PROTOBUF", .package = "protobuf-c (libprotobuf-c1)", .names = names,
                             .functions = &lib, .n = sizeof names / sizeof *names, .files = { "libprotobuf-c.so.1" } };

bool trek_protobuf_there(const char *what) { return trek_late_there(&library, what); }

/* Under these names the generated code knows them (meson.build). */
size_t trek_protobuf_get_packed_size(const ProtobufCMessage *message);
size_t trek_protobuf_pack(const ProtobufCMessage *message, uint8_t *out);
size_t trek_protobuf_pack_to_buffer(const ProtobufCMessage *message, ProtobufCBuffer *buffer);
ProtobufCMessage *trek_protobuf_unpack(const ProtobufCMessageDescriptor *descriptor, ProtobufCAllocator *allocator, size_t size,
                                       const uint8_t *data);
void trek_protobuf_free_unpacked(ProtobufCMessage *message, ProtobufCAllocator *allocator);

/* Nothing is exported, and nothing read, before trek_protobuf_there. */
size_t trek_protobuf_get_packed_size(const ProtobufCMessage *message) { return lib.get_packed_size(message); }
size_t trek_protobuf_pack(const ProtobufCMessage *message, uint8_t *out) { return lib.pack(message, out); }
size_t trek_protobuf_pack_to_buffer(const ProtobufCMessage *message, ProtobufCBuffer *buffer)
{
    return lib.pack_to_buffer(message, buffer);
}
ProtobufCMessage *trek_protobuf_unpack(const ProtobufCMessageDescriptor *descriptor, ProtobufCAllocator *allocator, size_t size,
                                       const uint8_t *data)
{
    return lib.unpack(descriptor, allocator, size, data);
}
void trek_protobuf_free_unpacked(ProtobufCMessage *message, ProtobufCAllocator *allocator)
{
    lib.free_unpacked(message, allocator);
}
