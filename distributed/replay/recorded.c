/* SPDX-License-Identifier: Apache-2.0 */
/* The file of digests (grains/digests.c). The last lines of a step count, and a step whose own line is missing has none. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "distributed/replay/replay_internal.h"
#include "tensor/memory_internal.h"

static trek_status read_text(const char *path, trek_text *text)
{
    FILE *file = fopen(path, "re");
    char bytes[16384];
    if (!file)
        return trek_fail(TREK_ERR_IO, "replay: TREK_REPLAY_DIGESTS: %s cannot be read: %s", path, strerror(errno));
    for (size_t n; (n = fread(bytes, 1, sizeof bytes, file)) > 0;)
        trek_text_bytes(text, bytes, n);
    bool failed = ferror(file);
    fclose(file);
    if (failed)
        return trek_fail(TREK_ERR_IO, "replay: TREK_REPLAY_DIGESTS: %s cannot be read", path);
    return text->failed ? TREK_ERR_MEMORY : TREK_OK;
}

static trek_status add(replay_recorded *r, int64_t step, const char *lines)
{
    trek_status status = trek_array_grow(&r->steps, &r->room, r->n_steps + 1, sizeof *r->steps);
    if (status == TREK_OK)
        r->steps[r->n_steps++] = (struct replay_place){ step, lines };
    return status;
}

/* Divides the text into steps. */
static trek_status divide(replay_recorded *r)
{
    trek_status status = TREK_OK;
    char *lines = NULL;
    for (char *line = r->text, *end; (end = strchr(line, '\n')) && status == TREK_OK; line = end + 1) {
        if (line[0] == '#') {
            int ranks;
            long long grain;
            lines = NULL;
            if (sscanf(line, "# grain %lld", &grain) == 1)
                r->grain = grain;
            if (sscanf(line, "# ranks %d", &ranks) == 1)
                r->ranks = ranks;
            continue;
        }
        long long step = 0;
        lines = lines ? lines : line;
        if (sscanf(line, "step %lld ", &step) != 1)
            continue;
        *end = '\0';
        status = add(r, step, lines);
        lines = NULL;
    }
    return status;
}

trek_status trek_replay_read(replay_recorded *r, const char *path)
{
    trek_text text = { 0 };
    trek_status status = read_text(path, &text);
    if (status == TREK_OK && (!text.data || strncmp(text.data, "# trek digests 1\n", 17) != 0))
        status = trek_fail(TREK_ERR_FORMAT, "replay: TREK_REPLAY_DIGESTS: %s is not a file of digests", path);
    r->text = status == TREK_OK ? trek_text_take(&text) : NULL;
    trek_text_clear(&text);
    if (status == TREK_OK)
        status = r->text ? divide(r) : TREK_ERR_MEMORY;
    return status;
}

void trek_replay_forget(replay_recorded *r)
{
    trek_free(r->text);
    trek_free(r->steps);
}

const char *trek_replay_find(const replay_recorded *r, int64_t step)
{
    for (int k = r->n_steps; k > 0; k--)
        if (r->steps[k - 1].step == step)
            return r->steps[k - 1].lines;
    return NULL;
}

bool trek_replay_word(const char *line, const char *name, char *word, size_t size)
{
    size_t length = strlen(name);
    const char *end = strchr(line, '\n');
    end = end ? end : line + strlen(line);
    for (const char *at = line; at < end;) {
        size_t n = strcspn(at, " \n");
        bool is = n == length && memcmp(at, name, n) == 0;
        at += n + 1;
        size_t next = at < end ? strcspn(at, " \n") : 0;
        if (!is || at >= end)
            continue;
        if (next >= size)
            return false;
        memcpy(word, at, next);
        word[next] = '\0';
        return true;
    }
    return false;
}
