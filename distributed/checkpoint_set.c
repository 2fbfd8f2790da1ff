/* SPDX-License-Identifier: Apache-2.0 */
#include "distributed/checkpoint_set.h"

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "nn/read_file.h"
#include "nn/safetensors.h"
#include "tensor/dtypes.h"
#include "tensor/memory_internal.h"
#include "tensor/shapes.h"
#include "tensor/status_internal.h"

#define INDEX ".index.json"
#define SUFFIX ".safetensors"

static bool ends(const char *text, size_t length, const char *with)
{
    size_t n = strlen(with);
    return length > n && memcmp(text + length - n, with, n) == 0;
}

bool trek_checkpoint_is_set(const char *path) { return ends(path, strlen(path), INDEX); }

/* --- who writes what -------------------------------------------------------------------- */

/* How good a process is for a tensor: it has most of it, and little to write so far. */
static bool is_better(const int64_t *kept, const int64_t *load, int a, int b)
{
    return kept[a] != kept[b] ? kept[a] > kept[b] : load[a] < load[b];
}

/* Chooses a process that stays within the limit, or the one with least to write. */
static int choose(const trek_checkpoint_shares *x, int k, const int64_t *load, int64_t limit)
{
    const int64_t *kept = x->kept + (int64_t)k * x->processes;
    int best = -1, least = -1;
    for (int p = 0; p < x->processes; p++) {
        if (kept[p] < 0)
            continue;
        least = least < 0 || load[p] < load[least] ? p : least;
        if (load[p] + x->bytes[k] <= limit && (best < 0 || is_better(kept, load, p, best)))
            best = p;
    }
    return best >= 0 ? best : least;
}

static bool is_everywhere(const trek_checkpoint_shares *x, int k)
{
    for (int p = 0; p < x->processes; p++)
        if (x->kept[(int64_t)k * x->processes + p] < x->bytes[k])
            return false;
    return true;
}

typedef struct by_size {
    int64_t bytes;
    int k;
} by_size;

static int compare(const void *a, const void *b)
{
    const by_size *x = a, *y = b;
    return x->bytes != y->bytes ? (x->bytes < y->bytes) - (x->bytes > y->bytes) : (x->k > y->k) - (x->k < y->k);
}

/* Large tensors are given out first, and those that are divided before those that any process can write. */
trek_status trek_checkpoint_divide(const trek_checkpoint_shares *x, int *writer)
{
    int64_t *load = trek_calloc((size_t)x->processes, sizeof *load), all = 0;
    by_size *order = trek_calloc((size_t)x->n + 1, sizeof *order);
    for (int k = 0; k < x->n && order; k++) {
        order[k] = (by_size){ x->bytes[k], k };
        all += x->bytes[k];
    }
    if (order && x->n > 0)
        qsort(order, (size_t)x->n, sizeof *order, compare);
    for (int everywhere = 0; everywhere < 2 && load && order; everywhere++)
        for (int i = 0; i < x->n; i++) {
            int k = order[i].k;
            if (is_everywhere(x, k) != (bool)everywhere)
                continue;
            writer[k] = choose(x, k, load, (all + x->processes - 1) / x->processes);
            load[writer[k]] += x->bytes[k];
        }
    bool made = load && order;
    trek_free(load);
    trek_free(order);
    return made ? TREK_OK : TREK_ERR_MEMORY;
}

/* --- names -------------------------------------------------------------------------------- */

/* The folder of a path, with its slash, and what the names of its files begin with. */
typedef struct place {
    int folder, stem;        /* lengths */
    const char *path;
} place;

static place place_of(const char *path)
{
    const char *slash = strrchr(path, '/');
    size_t folder = slash ? (size_t)(slash + 1 - path) : 0, length = strlen(path) - strlen(INDEX);
    if (length > folder && ends(path + folder, length - folder, SUFFIX))
        length -= strlen(SUFFIX);
    return (place){ (int)folder, (int)(length - folder), path };
}

/* Returns the number of the save that a file belongs to, or -1. */
static int64_t number_of(const place *at, const char *name)
{
    long long number;
    int file, of, used = 0;
    if (strncmp(name, at->path + at->folder, (size_t)at->stem) != 0 || name[at->stem] != '.')
        return -1;
    const char *rest = name + at->stem + 1;
    bool fits = sscanf(rest, "%18lld-%5d-of-%5d" SUFFIX "%n", &number, &file, &of, &used) == 3 && used > 0 && !rest[used];
    return fits && number > 0 ? number : -1;
}

static DIR *open_folder(const place *at)
{
    char *folder = at->folder > 0 ? trek_format("%.*s", at->folder, at->path) : trek_format(".");
    DIR *list = folder ? opendir(folder) : NULL;
    trek_free(folder);
    return list;
}

int64_t trek_checkpoint_set_next(const char *path)
{
    place at = place_of(path);
    DIR *list = open_folder(&at);
    int64_t last = 0;
    for (struct dirent *entry; list && (entry = readdir(list));) {
        int64_t number = number_of(&at, entry->d_name);
        last = number > last ? number : last;
    }
    if (list)
        closedir(list);
    return last + 1;
}

void trek_checkpoint_set_tidy(const char *path, int64_t number)
{
    place at = place_of(path);
    DIR *list = open_folder(&at);
    for (struct dirent *entry; list && (entry = readdir(list));) {
        int64_t other = number_of(&at, entry->d_name);
        if (other > 0 && other != number)
            unlinkat(dirfd(list), entry->d_name, 0);
    }
    if (list)
        closedir(list);
}

static bool has_file(const int *writer, int n, int process)
{
    for (int k = 0; k < n; k++)
        if (writer[k] == process)
            return true;
    return false;
}

char *trek_checkpoint_set_file(const char *path, int64_t number, const int *writer, int n, int process)
{
    place at = place_of(path);
    int file = 1, files = 0, last = 0;
    for (int k = 0; k < n; k++)
        last = writer[k] > last ? writer[k] : last;
    for (int p = 0; p <= last; p++) {
        files += has_file(writer, n, p);
        file += p < process && has_file(writer, n, p);
    }
    return trek_format("%.*s.%lld-%05d-of-%05d" SUFFIX, at.stem, path + at.folder, (long long)number, file, files);
}

static char *path_of(const char *path, int64_t number, const int *writer, int n, int process)
{
    char *name = trek_checkpoint_set_file(path, number, writer, n, process);
    char *whole = name ? trek_format("%.*s%s", place_of(path).folder, path, name) : NULL;
    trek_free(name);
    return whole;
}

/* --- files -------------------------------------------------------------------------------- */

static trek_status add_own(trek_state *own, const trek_state *state, const int *writer, int process)
{
    trek_status status = process == 0 ? trek_state_take_metadata(own, state) : TREK_OK;
    for (int k = 0; k < state->n_entries && status == TREK_OK; k++)
        if (writer[k] == process)
            status = trek_state_add_like(own, state->entries[k].name, &state->entries[k], &(trek_state_change){ 0 });
    for (int k = 0; k < state->n_aliases && status == TREK_OK; k++)
        if (writer[state->aliases[k].entry] == process)
            status = trek_state_add_alias(own, state->aliases[k].name, state->entries[state->aliases[k].entry].name);
    return status;
}

trek_status trek_checkpoint_set_write(const trek_state *state, const char *path, int64_t number, const int *writer, int process)
{
    if (!has_file(writer, state->n_entries, process))
        return TREK_OK;
    trek_state *own = trek_state_new();
    char *file = own ? path_of(path, number, writer, state->n_entries, process) : NULL;
    trek_status status = file ? add_own(own, state, writer, process) : TREK_ERR_MEMORY;
    if (status == TREK_OK)
        status = trek_state_write(own, file);
    trek_free(file);
    trek_state_free(&own);
    return status;
}

void trek_checkpoint_set_remove(const char *path, int64_t number, const int *writer, int n, int process)
{
    char *file = has_file(writer, n, process) ? path_of(path, number, writer, n, process) : NULL;
    if (file)
        unlink(file);
    trek_free(file);
}

/* --- the index ---------------------------------------------------------------------------- */

/* Returns whether the index in place names a file. */
static bool names_file(const char *path, const char *file)
{
    char *text = NULL;
    size_t length;
    bool found = trek_read_file(path, TREK_SAFETENSORS_MAX_HEADER, &text, &length) == TREK_OK && strstr(text, file);
    trek_free(text);
    return found;
}

static int highest(const int *writer, int n)
{
    int last = 0;
    for (int k = 0; k < n; k++)
        last = writer[k] > last ? writer[k] : last;
    return last;
}

trek_status trek_checkpoint_set_finish(const trek_state *state, const char *path, int64_t number, const int *writer,
                                       bool *replaced)
{
    int n = state->n_entries, files = highest(writer, n) + 1;
    uint64_t total = 0;
    char **names = trek_calloc((size_t)files, sizeof *names);
    trek_safetensors_place *places = trek_calloc((size_t)n + 1, sizeof *places);
    trek_status status = names && places ? TREK_OK : TREK_ERR_MEMORY;
    *replaced = false;
    for (int p = 0; p < files && status == TREK_OK; p++)
        if (!(names[p] = trek_checkpoint_set_file(path, number, writer, n, p)))
            status = TREK_ERR_MEMORY;
    for (int k = 0; k < n && status == TREK_OK; k++) {
        const trek_state_entry *entry = &state->entries[k];
        places[k] = (trek_safetensors_place){ entry->name, names[writer[k]] };
        total += (uint64_t)trek_shape_numel(trek_state_entry_shape(entry)) * trek_dtype_size(trek_state_entry_dtype(entry));
    }
    if (status == TREK_OK) {
        status = trek_safetensors_write_index(path, places, n, total);
        *replaced = status == TREK_OK || names_file(path, names[0]); /* it may be in place and not safe on disk */
    }
    for (int p = 0; names && p < files; p++)
        trek_free(names[p]);
    trek_free(names);
    trek_free(places);
    return status;
}
