/* SPDX-License-Identifier: Apache-2.0 */
/* Finds plug-ins, and provides the core's functions to them. */
#include "tensor/plugin.h"

#include <dlfcn.h>
#include <link.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "tensor/late.h"
#include "tensor/products_way.h"

/* --- the host table ----------------------------------------------------------- */

static trek_status host_fail(trek_status status, const char *message) { return trek_fail(status, "%s", message); }
static void host_log(trek_log_level level, const char *message) { trek_log_message(level, "%s", message); }
static trek_rank_context *host_rank_context(void) { return trek_rank_context_get(); }

const trek_host trek_host_table = {
    .abi = TREK_BACKEND_ABI,
    .ops = trek_ops,
    .fail = host_fail,
    .fail_missing = trek_fail_missing,
    .status_get = trek_error_status,
    .error_clear = trek_error_clear,
    .log_message = host_log,
    .log_wanted = trek_log_wanted,
    .alloc = trek_alloc,
    .realloc = trek_realloc,
    .free = trek_free,
    .rank_context = host_rank_context,
    .matmul_precision = trek_matmul_precision_get,
    .products_are_fixed = trek_products_are_fixed,
};

/* --- finding ------------------------------------------------------------------- */

/* Keeps the first reason, and only for files that exist, because the last failure says the least. */
static void *open_file(const char *path, char *why, size_t size)
{
    void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    const char *problem = library ? NULL : dlerror();
    if (problem && why && size && !why[0] && access(path, F_OK) == 0)
        snprintf(why, size, "%s", problem);
    return library;
}

/* Returns whether the program's owner, this user or root has put a file next to a program: the program may be in a
 * folder to which others can write. */
static bool put_there_by(const char *path, uid_t owner)
{
    struct stat file;
    return stat(path, &file) == 0 && (file.st_uid == 0 || file.st_uid == owner || file.st_uid == geteuid()) &&
           !(file.st_mode & S_IWOTH);
}

/* Opens the plug-in next to the library or program that contains the core, by the real path of its file: the name of
 * a program, which the loader reports, is chosen by whoever starts it, and relative names depend on the current
 * folder. */
static void *open_beside(const char *name, char *why, size_t size)
{
    char of[4096], path[4352];
    Dl_info info;
    struct link_map *map = NULL;
    struct stat program;
    if (!dladdr1(&trek_host_table, &info, (void **)&map, RTLD_DL_LINKMAP) || !info.dli_fname)
        return NULL;
    bool shared = map && map->l_name && map->l_name[0];
    ssize_t length = shared ? snprintf(of, sizeof of, "%s", info.dli_fname) : readlink("/proc/self/exe", of, sizeof of - 1);
    if (length <= 0 || length >= (ssize_t)sizeof of || of[0] != '/')
        return NULL;
    of[length] = '\0';
    if (stat(of, &program) != 0)
        return NULL;
    snprintf(path, sizeof path, "%.*s/lib%s.so", (int)(strrchr(of, '/') - of), of, name);
    return shared || put_there_by(path, program.st_uid) ? open_file(path, why, size) : NULL;
}

/* Gets one folder of a list; *at moves behind it. Returns false at the end of the list. */
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
    const char *at = trek_late_named("TREK_PLUGIN_PATH");
    while (at && !library && next_folder(&at, folder, sizeof folder)) {
        snprintf(path, sizeof path, "%s/lib%s.so", folder, name);
        if (folder[0] == '/')
            library = open_file(path, why, size);
        else
            trek_log_message(TREK_LOG_LEVEL_WARNING, "TREK_PLUGIN_PATH: %.200s is passed over: " TREK_LATE_RELATIVE, folder);
    }
    if (!library)
        library = open_beside(name, why, size);
    if (!library) {
        snprintf(path, sizeof path, "lib%s.so", name);
        library = open_file(path, why, size);
    }
    if (!library && why && size && !why[0])
        snprintf(why, size, "lib%s.so was not found", name);
    return library;
}

bool trek_plugin_fill(const char *name, const char *opener, int abi, void *table, char *why, size_t size)
{
    char reason[400] = "";
    void *library = trek_plugin_open(name, reason, sizeof reason);
    if (!library) {
        snprintf(why, size, "the plug-in lib%s cannot be opened: %s", name, reason);
        return false;
    }
    trek_plugin_fill_fn fill;
    int filled = 0;
    void *symbol = dlsym(library, opener);
    memcpy(&fill, &symbol, sizeof fill);
    if (!symbol) {
        snprintf(why, size, "lib%s is no plug-in of trek", name);
    } else if (fill(abi, &trek_host_table, table, why, size) == TREK_OK) {
        memcpy(&filled, table, sizeof filled);
        if (filled == abi)
            return true;
        snprintf(why, size, "lib%s is of another version of trek", name);
    }
    dlclose(library);
    return false;
}
