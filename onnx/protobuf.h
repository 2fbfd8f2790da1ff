/* SPDX-License-Identifier: Apache-2.0 */
/* protobuf-c, which is opened at the first export. */
#ifndef TREK_ONNX_PROTOBUF_H
#define TREK_ONNX_PROTOBUF_H

#include <stdbool.h>

/* Returns whether it is available; otherwise UNSUPPORTED is set. */
bool trek_protobuf_there(const char *what);

#endif
