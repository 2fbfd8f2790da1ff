/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/run_hosts.h"

#include <ctype.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static bool wrong(const char *what, const char *problem, const char *which)
{
    fprintf(stderr, "trek-run: %s: %s: %s\n", what, problem, which);
    return false;
}

static bool is_here(const char *name)
{
    char own[256] = "";
    gethostname(own, sizeof own - 1);
    return strcmp(name, "localhost") == 0 || strcmp(name, "127.0.0.1") == 0 || strcmp(name, "::1") == 0 ||
           (*own && strcmp(name, own) == 0);
}

/* Accepts nothing that ssh could take for an option, or a shell for more than a name. */
static bool is_name(const char *name)
{
    for (const char *c = name; *c; c++)
        if (!isalnum((unsigned char)*c) && !strchr("._-:@%", *c))
            return false;
    return *name && *name != '-' && *name != '@' && name[strlen(name) - 1] != '@' && strlen(name) < 250;
}

static bool read_slots(const char *text, int *slots)
{
    char *end;
    errno = 0;
    long value = strtol(text, &end, 10);
    *slots = (int)value;
    return isdigit((unsigned char)*text) && *end == '\0' && errno == 0 && value >= 1 && value <= MOST;
}

/* slots 0 means that none were given. A host that is repeated without a number has one slot for each time. */
static bool add(hosts *h, const char *name, int slots)
{
    for (int k = 0; k < h->n; k++)
        if (strcmp(h->list[k].name, name) == 0 || (h->list[k].here && is_here(name))) {
            int all = (h->list[k].slots ? h->list[k].slots : 1) + (slots ? slots : 1);
            h->list[k].slots = all < MOST ? all : MOST;
            return true;
        }
    host *more = realloc(h->list, sizeof *more * (size_t)(h->n + 1));
    char *own = more ? strdup(name) : NULL;
    h->list = more ? more : h->list;
    if (!own)
        return wrong("hosts", "no memory", name);
    h->list[h->n++] = (host){ .name = own, .slots = slots, .here = is_here(name) };
    return true;
}

/* Cuts the number off "name", "name:4" or "[fe80::1]:4". An address with colons needs brackets. */
static bool split(char *text, char **name, int *slots)
{
    char *colon = strrchr(text, ':'), *close = text[0] == '[' ? strchr(text, ']') : NULL;
    *slots = 0;
    *name = text;
    if (text[0] == '[') {
        if (!close || (close[1] && close[1] != ':'))
            return false;
        *name = text + 1;
        colon = close[1] ? close + 1 : NULL;
        *close = '\0';
    } else if (colon && strchr(text, ':') != colon) {
        return false;
    }
    if (!colon)
        return true;
    *colon = '\0';
    return read_slots(colon + 1, slots);
}

bool hosts_read_list(hosts *h, const char *what, const char *text)
{
    char *copy = strdup(text), *rest = copy, *item;
    bool good = copy != NULL;
    while (good && (item = strsep(&rest, ","))) {
        char shown[300], *name;
        int slots;
        snprintf(shown, sizeof shown, "\"%.250s\"", item);
        good = (split(item, &name, &slots) && is_name(name)) || wrong(what, "no NAME or NAME:PROCESSES", shown);
        good = good && add(h, name, slots);
    }
    free(copy);
    return good;
}

/* Reads "slots=4", which follows a name. */
static bool read_setting(const char *word, int *slots)
{
    int most;
    if (strncmp(word, "slots=", 6) == 0)
        return read_slots(word + 6, slots);
    return (strncmp(word, "max_slots=", 10) == 0 || strncmp(word, "max-slots=", 10) == 0) && read_slots(word + 10, &most);
}

static bool read_line(hosts *h, const char *what, char *line)
{
    char *rest = line, *word, *name = NULL;
    int slots = 0;
    line[strcspn(line, "#\n\r")] = '\0';
    while ((word = strsep(&rest, " \t"))) {
        if (!*word)
            continue;
        if (!name && !(split(word, &name, &slots) && is_name(name)))
            return wrong(what, "no NAME, NAME:PROCESSES or NAME slots=PROCESSES", word);
        if (name != word && name != word + 1 && !read_setting(word, &slots))
            return wrong(what, "no slots=PROCESSES", word);
    }
    return !name || add(h, name, slots);
}

bool hosts_read_file(hosts *h, const char *path)
{
    FILE *file = fopen(path, "re");
    char line[1024], what[1200];
    bool good = file || wrong("--hostfile", path, strerror(errno));
    for (int number = 1; good && fgets(line, sizeof line, file); number++) {
        snprintf(what, sizeof what, "%.1000s, line %d", path, number);
        good = (strchr(line, '\n') || feof(file)) ? read_line(h, what, line)
            : wrong(what, "it is too long", "more than 1023 bytes");
    }
    if (file)
        fclose(file);
    return good && (h->n > 0 || wrong("--hostfile", "it lists no host", path));
}

/* Distributes one at a time, so that the shares are as equal as possible; the first ones get one more. */
static void share(hosts *h, int left, int sharing)
{
    for (int k = 0; k < h->n; k++)
        if (h->list[k].slots == 0) {
            h->list[k].processes = left / sharing + (left % sharing > 0);
            left -= h->list[k].processes;
            sharing--;
        }
}

int hosts_place(hosts *h, int processes)
{
    int slots = 0, sharing = 0, kept = 0;
    for (int k = 0; k < h->n; k++) {
        slots += h->list[k].slots;
        sharing += h->list[k].slots == 0;
    }
    int all = processes ? processes : slots + sharing;
    if (all > MOST || (sharing == 0 && all > slots)) {
        fprintf(stderr, "trek-run: -n %d: the hosts have %d slots\n", all, all > MOST ? MOST : slots);
        return 0;
    }
    int left = all;
    for (int k = 0; k < h->n; k++) { /* those that share get at least one each */
        int most = left - sharing > 0 ? left - sharing : 0;
        h->list[k].processes = h->list[k].slots < most ? h->list[k].slots : most;
        left -= h->list[k].processes;
    }
    share(h, left, sharing);
    for (int k = 0, first = 0; k < h->n; k++) {
        h->list[k].first = first;
        first += h->list[k].processes;
        if (h->list[k].processes > 0)
            h->list[kept++] = h->list[k];
        else
            free(h->list[k].name);
    }
    h->n = kept;
    return all;
}

const char *host_address(const host *h)
{
    const char *at = strrchr(h->name, '@');
    return at ? at + 1 : h->name;
}
