/* SPDX-License-Identifier: Apache-2.0 */
/* The exporter for builds without protobuf-c. */
#include "onnx/export.h"

trek_status trek_onnx_export(trek_module *module, const char *path, trek_var *const *inputs, int n, const trek_onnx_opts *opts)
{
    (void)module, (void)path, (void)inputs, (void)n, (void)opts;
    return trek_fail(TREK_ERR_UNSUPPORTED, "onnx_export: trek was built without protobuf-c (-Donnx=enabled asks for it)");
}
