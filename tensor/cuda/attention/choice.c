/* SPDX-License-Identifier: Apache-2.0 */
/* The implementation of attention that TREK_CUDA_ATTENTION selects. */
#include "tensor/cuda/attention/choice.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

static trek_cuda_attention_kind choice;
static pthread_once_t choice_once = PTHREAD_ONCE_INIT;

static void read_environment(void)
{
    static const char *const names[] = { "auto", "own", "wgmma", "cudnn" };
    const char *value = getenv("TREK_CUDA_ATTENTION");
    if (!value || !value[0])
        return;
    for (int k = 0; k < 4; k++)
        if (strcmp(value, names[k]) == 0) {
            choice = (trek_cuda_attention_kind)k;
            return;
        }
    trek_log_message(TREK_LOG_LEVEL_WARNING,
                     "TREK_CUDA_ATTENTION is \"%.80s\", which is ignored: it takes auto, own, wgmma or cudnn", value);
}

trek_cuda_attention_kind trek_cuda_attention_choice(void)
{
    pthread_once(&choice_once, read_environment);
    return choice;
}
