/* SPDX-License-Identifier: Apache-2.0 */
/* The interface between the core and its plug-ins. A plug-in links nothing of trek, so that it works with the static
 * and with the shared core. It exports one function, which gets a table of host functions and fills a table of its
 * own. */
#ifndef TREK_TENSOR_PLUGIN_H
#define TREK_TENSOR_PLUGIN_H

#include "tensor/backend.h"
#include "tensor/log.h"
#include "tensor/rank_context.h"

TREK_BEGIN

typedef struct trek_host {
    int abi;                      /* TREK_BACKEND_ABI */
    const trek_op *ops;           /* TREK_OP_COUNT of them */
    trek_status (*fail)(trek_status status, const char *message);
    trek_status (*status_get)(void);
    void (*error_clear)(void);
    void (*log_message)(trek_log_level level, const char *message);
    bool (*log_wanted)(trek_log_level level); /* whether messages of this level are read */
    void *(*alloc)(size_t bytes); /* as trek_alloc: sets MEMORY on failure */
    void (*free)(void *memory);
    trek_rank_context *(*rank_context)(void); /* of the calling thread */
    trek_matmul_precision (*matmul_precision)(void); /* trek_matmul_precision_get */
} trek_host;

/* The function that a plug-in exports under this name. It fills *backend (zeroed before) and returns OK, or a status
 * with the reason in `why`; the core then continues without it. */
typedef trek_status (*trek_backend_open_fn)(int abi, const trek_host *host, trek_backend *backend, char *why, size_t size);
#define TREK_BACKEND_OPEN "trek_backend_open"

/* Looks for lib<name>.so in TREK_PLUGIN_PATH (absolute paths of folders, separated by colons), next to the library or
 * program that contains the core, and where the system looks, but never in the current folder as such. Returns NULL
 * and the reason on failure. */
void *trek_plugin_open(const char *name, char *why, size_t size);
extern const trek_host trek_host_table;

TREK_END

#endif
