/* SPDX-License-Identifier: Apache-2.0 */
/* cuDNN's functions by name, and a handle for each queue. */
#include "tensor/cuda/dnn/library.h"

#include "tensor/cuda/library.h"
#include "tensor/cuda/paths.h"

#include <stdio.h>

#ifdef TREK_HAVE_CUDNN
#include <pthread.h>

static trek_dnn_library dnn;
static pthread_once_t dnn_once = PTHREAD_ONCE_INIT;

static void open_dnn(void)
{
    static const char *const names[] = { "libcudnn.so.9", NULL };
    dnn.library = trek_cuda_open_library("TREK_CUDNN_LIBRARY", names, dnn.why, sizeof dnn.why);
    dnn.there = dnn.library != NULL;
#define FIND(name)                                                                              \
    if (dnn.there && !trek_cuda_find_function(dnn.library, "cudnn" #name, &dnn.name)) {         \
        dnn.there = false;                                                                      \
        snprintf(dnn.why, sizeof dnn.why, "the library lacks cudnn" #name);                     \
        trek_log_message(TREK_LOG_LEVEL_WARNING, "cuDNN is not used: %s", dnn.why);                   \
    }
    TREK_DNN_FUNCTIONS(FIND)
#undef FIND
}

const trek_dnn_library *trek_dnn(void)
{
    pthread_once(&dnn_once, open_dnn);
    return &dnn;
}

void trek_cuda_dnn_version(char *text, size_t size)
{
    size_t version = trek_dnn()->there ? dnn.GetVersion() : 0;
    if (dnn.there)
        snprintf(text, size, "cuDNN %zu.%zu.%zu", version / 10000, version / 100 % 100, version % 100);
    else
        snprintf(text, size, "no cuDNN: %s", dnn.why);
}

trek_dnn_queue *trek_dnn_queue_of(trek_cuda_queue *queue)
{
    trek_dnn_queue *own = queue->dnn;
    if (own)
        return own->broken ? NULL : own;
    if (!trek_dnn()->there || queue->capture)
        return NULL;
    trek_status before = trek_error_status();
    own = queue->dnn = trek_calloc(1, sizeof *own);
    if (!own) {
        if (before == TREK_OK)
            trek_error_clear();
        return NULL;
    }
    own->broken = !trek_dnn_fine(dnn.Create(&own->handle)) || !trek_dnn_fine(dnn.SetStream(own->handle, queue->stream));
    if (own->broken)
        trek_log_message(TREK_LOG_LEVEL_WARNING, "cuDNN: no handle could be made on device %d; it is not used there",
                         queue->device->index);
    return own->broken ? NULL : own;
}

trek_status trek_dnn_refuse(const trek_cuda_queue *queue)
{
    if (!trek_dnn()->there)
        return trek_cuda_refuse(dnn.why[0] ? dnn.why : "there is no cuDNN");
    if (queue->dnn)
        return trek_cuda_refuse("no handle of cuDNN could be made on the device");
    return trek_cuda_refuse(queue->capture ? "cuDNN was first asked while a step was captured" : "out of memory");
}

#else

void trek_cuda_dnn_version(char *text, size_t size) { snprintf(text, size, "no cuDNN: this libtrek-cuda was built without it"); }

#endif
