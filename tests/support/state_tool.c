/* SPDX-License-Identifier: Apache-2.0 */
/* Writes and reads a state file of known numbers, for check_safetensors.py.
 *   state_tool write FILE     state_tool read FILE */
#include <stdio.h>
#include <string.h>

#include "nn/layers.h"
#include "nn/params.h"
#include "nn/state.h"
#include "tensor/copies.h"
#include "tests/support/support.h"

static trek_module *make_model(void)
{
    trek_module *layers[] = { trek_nn_conv2d(2, 3, 3, trek_cpu(0)), trek_nn_batch_norm2d(3, trek_cpu(0)), trek_nn_flatten(),
                              trek_nn_linear(12, 4, trek_cpu(0)) };
    return trek_nn_sequential(layers, 4);
}

/* Parameter k holds stream 100 + k. */
static int each_param(trek_module *model, bool check)
{
    trek_params *params = trek_module_params(model);
    int wrong = params ? 0 : 1;
    for (int k = 0; params && k < trek_params_count(params); k++) {
        trek_var *p = trek_params_var(params, k);
        trek_tensor *want = test_tensor((uint32_t)(100 + k), trek_var_shape(p), 1);
        if (check)
            wrong += memcmp(trek_tensor_data(want), trek_tensor_data(trek_var_data(p)),
                            sizeof(float) * (size_t)trek_var_numel(p)) != 0;
        else
            wrong += trek_tensor_copy_from(trek_var_data(p), want) != TREK_OK;
        trek_tensor_release(want);
    }
    trek_params_free(&params);
    return wrong;
}

int main(int argc, char **argv)
{
    if (argc != 3)
        return 2;
    trek_module *model = make_model();
    int wrong = model ? 0 : 1;
    if (model && !strcmp(argv[1], "write")) {
        wrong += each_param(model, false);
        wrong += trek_state_save(model, argv[2]) != TREK_OK;
    } else if (model) {
        wrong += trek_state_load(model, argv[2], NULL) != TREK_OK;
        wrong += each_param(model, true);
    }
    if (wrong)
        fprintf(stderr, "%d tensors are wrong: %s\n", wrong, trek_error());
    trek_module_free(&model);
    return wrong != 0;
}
