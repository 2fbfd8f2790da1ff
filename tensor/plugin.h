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
    trek_status (*fail_missing)(const char *function, const char *what); /* as trek_fail_missing */
    trek_status (*status_get)(void);
    void (*error_clear)(void);
    void (*log_message)(trek_log_level level, const char *message);
    bool (*log_wanted)(trek_log_level level); /* whether messages of this level are read */
    void *(*alloc)(size_t bytes); /* as trek_alloc: sets MEMORY on failure */
    void *(*realloc)(void *memory, size_t bytes); /* as trek_realloc */
    void (*free)(void *memory);
    trek_rank_context *(*rank_context)(void); /* of the calling thread */
    trek_matmul_precision (*matmul_precision)(void); /* trek_matmul_precision_get */
    bool (*products_are_fixed)(void);                /* tensor/products_way.h */
} trek_host;

/* The function that a plug-in exports. It fills *table (zeroed before), which begins with its ABI number (int), and
 * returns OK, or a status with the reason in `why`; the core then continues without it. */
typedef trek_status (*trek_plugin_fill_fn)(int abi, const trek_host *host, void *table, char *why, size_t size);
#define TREK_BACKEND_OPEN "trek_backend_open"

/* Looks for lib<name>.so in TREK_PLUGIN_PATH (absolute paths of folders, separated by colons), next to the library or
 * program that contains the core, and where the system looks, but never in the current folder as such. Returns NULL
 * and the reason on failure. */
void *trek_plugin_open(const char *name, char *why, size_t size);
/* Opens the plug-in lib<name>.so, which stays open, and has its function `opener` fill a table of this ABI. On failure
 * writes the reason, which names the plug-in, and returns false; the table may then have been written to. */
bool trek_plugin_fill(const char *name, const char *opener, int abi, void *table, char *why, size_t size);
extern const trek_host trek_host_table;

/* In a plug-in: the table that it was opened with (plugin_host.c). */
extern const trek_host *trek_plugin_host;

TREK_END

#endif
