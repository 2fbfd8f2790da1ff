/* SPDX-License-Identifier: Apache-2.0 */
/* What TREK_CUDA_LOGITS selects. */
#include "tensor/cuda/reduce/logits.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

static bool kept = true;
static pthread_once_t kept_once = PTHREAD_ONCE_INIT;

static void read_environment(void)
{
    const char *value = getenv("TREK_CUDA_LOGITS");
    if (!value || !value[0] || strcmp(value, "kept") == 0)
        return;
    kept = strcmp(value, "pieces") != 0;
    if (kept)
        trek_log_message(TREK_LOG_LEVEL_WARNING, "TREK_CUDA_LOGITS is \"%s\"; kept or pieces is allowed, and kept is taken",
                         value);
}

bool trek_cuda_logits_kept(void)
{
    pthread_once(&kept_once, read_environment);
    return kept;
}
