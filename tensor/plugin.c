/* SPDX-License-Identifier: Apache-2.0 */
/* Finding plug-ins, and what the core offers them. */
#include "tensor/plugin.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* --- the host table ----------------------------------------------------------- */

static trek_status host_fail(trek_status status, const char *message) { return trek_fail(status, "%s", message); }
static void host_log(trek_log_level level, const char *message) { trek_log_message(level, "%s", message); }
static trek_rank_context *host_rank_context(void) { return trek_rank_context_get(); }

const trek_host trek_host_table = {
    .abi = TREK_BACKEND_ABI,
    .ops = trek_ops,
    .fail = host_fail,
    .status_get = trek_error_status,
    .error_clear = trek_error_clear,
    .log_message = host_log,
    .log_wanted = trek_log_wanted,
    .alloc = trek_alloc,
    .free = trek_free,
    .rank_context = host_rank_context,
    .tf32_allowed = trek_tf32_allowed,
};

/* --- finding ------------------------------------------------------------------- */

/* Keeps the first reason, and only of files that are there: what fails last is least telling. */
static void *open_file(const char *path, char *why, size_t size)
{
    void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    const char *problem = library ? NULL : dlerror();
    if (problem && why && size && !why[0] && access(path, F_OK) == 0)
        snprintf(why, size, "%s", problem);
    return library;
}

/* One folder of a list; *at moves behind it. False when the list is at its end. */
static bool next_folder(const char **at, char *folder, size_t size)
{
    while (**at == ':')
        ++*at;
    size_t length = strcspn(*at, ":");
    if (length == 0)
        return false;
    snprintf(folder, size, "%.*s", (int)length, *at);
    *at += length;
    return true;
}

void *trek_plugin_open(const char *name, char *why, size_t size)
{
    char folder[3072], path[4096];
    void *library = NULL;
    if (why && size)
        why[0] = 0;
    const char *at = getenv("TREK_PLUGIN_PATH");
    while (at && !library && next_folder(&at, folder, sizeof folder)) {
        snprintf(path, sizeof path, "%s/lib%s.so", folder, name);
        library = open_file(path, why, size);
    }
    Dl_info info;
    const void *inside = &trek_host_table;
    if (!library && dladdr(inside, &info) && info.dli_fname && strrchr(info.dli_fname, '/')) {
        int length = (int)(strrchr(info.dli_fname, '/') - info.dli_fname);
        snprintf(path, sizeof path, "%.*s/lib%s.so", length, info.dli_fname, name);
        library = open_file(path, why, size);
    }
    if (!library) {
        snprintf(path, sizeof path, "lib%s.so", name);
        library = open_file(path, why, size);
    }
    if (!library && why && size && !why[0])
        snprintf(why, size, "lib%s.so was not found", name);
    return library;
}
