/* SPDX-License-Identifier: Apache-2.0 */
/* protobuf-c, which is opened at the first export. Internal. */
#ifndef TREK_ONNX_PROTOBUF_H
#define TREK_ONNX_PROTOBUF_H

#include <stdbool.h>

/* Whether it is there; else UNSUPPORTED. */
bool trek_protobuf_there(const char *what);

#endif
