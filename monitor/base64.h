/* SPDX-License-Identifier: Apache-2.0 */
/* Bytes as text (RFC 4648). */
#ifndef TREK_MONITOR_BASE64_H
#define TREK_MONITOR_BASE64_H

#include "nn/text.h"

void trek_base64_encode(trek_text *out, const void *bytes, size_t count);
/* Appends the bytes that a base64 text stands for. Returns false if it is not base64. */
bool trek_base64_decode(trek_text *out, const char *base64);

#endif
