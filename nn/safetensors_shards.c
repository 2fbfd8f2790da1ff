/* SPDX-License-Identifier: Apache-2.0 */
/* Writing a state in several files with an index, divided in the same way as Hugging Face's programs do. */
#include <dirent.h>
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "nn/json.h"
#include "nn/replace_file.h"
#include "nn/safetensors.h"
#include "tensor/dtypes.h"
#include "tensor/memory_internal.h"
#include "tensor/shapes.h"
#include "tensor/status_internal.h"

#define SHARD_NAME "model-%05d-of-%05d.safetensors"

typedef struct sharding {
    const trek_state *state;
    const char *folder;
    int *shard;               /* [entries] */
    int n;
    uint64_t total;
} sharding;

/* Divides the entries in order. A tensor that does not fit begins a new file, and one that is too large for any file
 * gets one of its own. */
static trek_status divide(sharding *s, uint64_t most)
{
    const trek_state *state = s->state;
    int open = -1; /* the file that further tensors may go into */
    uint64_t filled = 0;
    s->shard = trek_calloc((size_t)state->n_entries + 1, sizeof *s->shard);
    if (!s->shard)
        return TREK_ERR_MEMORY;
    for (int k = 0; k < state->n_entries; k++) {
        uint64_t bytes = (uint64_t)trek_shape_numel(trek_state_entry_shape(&state->entries[k])) *
            trek_dtype_size(trek_state_entry_dtype(&state->entries[k]));
        s->total += bytes;
        if (bytes > most) {
            s->shard[k] = s->n++;
            continue;
        }
        if (open < 0 || filled + bytes > most) {
            open = s->n++;
            filled = 0;
        }
        s->shard[k] = open;
        filled += bytes;
    }
    return TREK_OK;
}

/* Returns a new string. */
static char *path_of(const sharding *s, int shard)
{
    return s->n <= 1 ? trek_format("%s/" TREK_SAFETENSORS_MODEL, s->folder)
        : trek_format("%s/" SHARD_NAME, s->folder, shard + 1, s->n);
}

static trek_status write_shard(const sharding *s, int shard)
{
    const trek_state *state = s->state;
    trek_state *part = trek_state_new();
    trek_status status = part ? trek_state_take_metadata(part, state) : TREK_ERR_MEMORY;
    for (int k = 0; k < state->n_entries && status == TREK_OK; k++)
        if (s->shard[k] == shard)
            status = trek_state_add_like(part, state->entries[k].name, &state->entries[k], &(trek_state_change){ 0 });
    for (int k = 0; k < state->n_aliases && status == TREK_OK; k++)
        if (s->shard[state->aliases[k].entry] == shard)
            status = trek_state_add_alias(part, state->aliases[k].name, state->entries[state->aliases[k].entry].name);
    char *path = status == TREK_OK ? path_of(s, shard) : NULL;
    if (status == TREK_OK)
        status = path ? trek_state_write(part, path) : TREK_ERR_MEMORY;
    trek_state_free(&part);
    trek_free(path);
    return status;
}

static int by_name(const void *a, const void *b)
{
    return strcmp(((const trek_safetensors_place *)a)->name, ((const trek_safetensors_place *)b)->name);
}

/* Writes the index with sorted names, as those programs do. */
static trek_status index_text(trek_safetensors_place *places, int n, uint64_t total, trek_text *out)
{
    qsort(places, (size_t)n, sizeof *places, by_name);
    trek_text_format(out, "{\n  \"metadata\": {\n    \"total_size\": %" PRIu64 "\n  },\n  \"weight_map\": {", total);
    for (int k = 0; k < n; k++) {
        trek_text_add(out, k ? ",\n    " : "\n    ");
        trek_json_string(out, places[k].name);
        trek_text_add(out, ": ");
        trek_json_string(out, places[k].file);
    }
    trek_text_add(out, "\n  }\n}\n");
    return out->failed ? TREK_ERR_MEMORY : TREK_OK;
}

trek_status trek_safetensors_write_index(const char *path, trek_safetensors_place *places, int n, uint64_t total)
{
    trek_text text = { 0 };
    trek_file_replacement replacement;
    trek_status status = index_text(places, n, total, &text);
    if (status == TREK_OK)
        status = trek_replace_begin(&replacement, path);
    if (status == TREK_OK)
        status = trek_replace_end(&replacement, trek_safetensors_write_bytes(replacement.file, text.data, text.length, 0, path));
    trek_text_clear(&text);
    return status;
}

typedef struct shard_name {
    char text[sizeof SHARD_NAME + 16];
} shard_name;

static trek_status write_index(const sharding *s)
{
    int n = s->state->n_entries;
    char *path = trek_format("%s/" TREK_SAFETENSORS_INDEX, s->folder);
    shard_name *files = trek_calloc((size_t)s->n, sizeof *files);
    trek_safetensors_place *places = trek_calloc((size_t)n + 1, sizeof *places);
    trek_status status = path && files && places ? TREK_OK : TREK_ERR_MEMORY;
    for (int k = 0; k < s->n && status == TREK_OK; k++)
        snprintf(files[k].text, sizeof files[k].text, SHARD_NAME, k + 1, s->n);
    for (int k = 0; k < n && status == TREK_OK; k++)
        places[k] = (trek_safetensors_place){ s->state->entries[k].name, files[s->shard[k]].text };
    if (status == TREK_OK)
        status = trek_safetensors_write_index(path, places, n, s->total);
    trek_free(places);
    trek_free(files);
    trek_free(path);
    return status;
}

/* Returns whether a name is one of a state's files but none of this state's. */
static bool is_stale(const sharding *s, const char *name)
{
    int shard, of, used = 0;
    if (strcmp(name, TREK_SAFETENSORS_MODEL) == 0)
        return s->n > 1;
    if (strcmp(name, TREK_SAFETENSORS_INDEX) == 0)
        return s->n <= 1;
    return sscanf(name, "model-%5d-of-%5d.safetensors%n", &shard, &of, &used) == 2 && used > 0 && !name[used] &&
        (s->n <= 1 || of != s->n || shard < 1 || shard > s->n);
}

/* Removes the files of an earlier state in the folder, which might be read in place of this one, or would waste space. */
static void remove_stale(const sharding *s)
{
    DIR *list = opendir(s->folder);
    for (struct dirent *entry; list && (entry = readdir(list));)
        if (is_stale(s, entry->d_name))
            unlinkat(dirfd(list), entry->d_name, 0);
    if (list)
        closedir(list);
}

trek_status trek_state_write_shards(const trek_state *state, const char *folder, uint64_t max_bytes)
{
    struct stat info;
    if (!state || !folder)
        return trek_fail_missing("state_write_shards", state ? "folder" : "state");
    if (max_bytes == 0)
        return trek_fail(TREK_ERR_ARGUMENT, "state_write_shards: max_bytes: 0; must be at least 1");
    if (stat(folder, &info) != 0 || !S_ISDIR(info.st_mode))
        return trek_fail(TREK_ERR_IO, "%s: it is not a folder", folder);
    sharding s = { .state = state, .folder = folder };
    trek_status status = divide(&s, max_bytes);
    if (status == TREK_OK && s.n > 99999)
        status = trek_fail(TREK_ERR_ARGUMENT, "state_write_shards: max_bytes: it gives %d files; must give at most 99999", s.n);
    for (int k = 0; k < (s.n > 1 ? s.n : 1) && status == TREK_OK; k++)
        status = write_shard(&s, k);
    if (status == TREK_OK && s.n > 1)
        status = write_index(&s);
    if (status == TREK_OK)
        remove_stale(&s);
    trek_free(s.shard);
    return status;
}
