/* SPDX-License-Identifier: Apache-2.0 */
#include "tensor/environment.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tensor/status_internal.h"

static const char *setting(const char *name)
{
    const char *text = getenv(name);
    return text && *text ? text : NULL;
}

/* --- reading ----------------------------------------------------------------------------------------------------- */

static bool read_number(const char *text, long low, long high, long *value)
{
    char *end;
    errno = 0;
    bool hex = text[0] == '0' && (text[1] == 'x' || text[1] == 'X');
    *value = strtol(text, &end, hex ? 16 : 10);
    bool digit = (text[0] >= '0' && text[0] <= '9') || text[0] == '-';
    return digit && *end == '\0' && errno == 0 && *value >= low && *value <= high;
}

static int find_choice(const char *text, const char *const *choices, int n)
{
    for (int k = 0; k < n; k++)
        if (strcmp(text, choices[k]) == 0)
            return k;
    return -1;
}

static char *list_choices(const char *const *choices, int n, char *text, size_t size)
{
    text[0] = '\0';
    for (int k = 0; k < n; k++) {
        size_t length = strlen(text);
        snprintf(text + length, size - length, "%s%s", k == 0 ? "" : k < n - 1 ? ", " : " or ", choices[k]);
    }
    return text;
}

long trek_environment_number(const char *name, long low, long high, long unset)
{
    const char *text = setting(name);
    long value;
    if (!text || read_number(text, low, high, &value))
        return text ? value : unset;
    trek_log_message(TREK_LOG_LEVEL_WARNING, "%s=%.80s: not a whole number from %ld to %ld: it is ignored", name, text, low,
                     high);
    return unset;
}

int trek_environment_choice(const char *name, const char *const *choices, int n, int unset)
{
    const char *text = setting(name);
    char known[200];
    int found = text ? find_choice(text, choices, n) : unset;
    if (!text || found >= 0)
        return found;
    trek_log_message(TREK_LOG_LEVEL_WARNING, "%s=%.80s: it is ignored: it takes %s", name, text,
                     list_choices(choices, n, known, sizeof known));
    return unset;
}

int trek_environment_local_rank(void)
{
    static const char *const names[] = { TREK_LOCAL_RANK_VARIABLES };
    for (size_t k = 0; k < sizeof names / sizeof *names; k++) {
        const char *text = setting(names[k]);
        long rank;
        if (text)
            return read_number(text, 0, 1 << 20, &rank) ? (int)rank : 0;
    }
    return 0;
}

/* --- all at once -------------------------------------------------------------------------------------------------- */

typedef struct rule {
    const char *name;
    long low, high;          /* of numbers */
    const char *words[4];    /* words that are allowed instead of a number */
} rule;

static const rule rules[] = {
    { "TREK_LOG", 0, 0, { "error", "warning", "info", "debug" } },
    { "TREK_CACHE", 0, 0, { "off", "on" } },
    { "TREK_ON_ERROR", 0, 0, { "abort" } },
    { "TREK_THREADS", 1, 1024, { NULL } },
    { "TREK_GRAIN", 1, 1000000000, { NULL } },
    { "TREK_PIN", 0, 1, { NULL } },
    { "TREK_DEBUG", 0, 1, { NULL } },
    { "TREK_DEBUG_POISON", 0, 255, { NULL } },
    { "TREK_NVTX", 0, 1, { NULL } },
    { "TREK_NCCL", 0, 1, { NULL } },
    { "TREK_JOIN", 0, 0, { "0", "1", "new" } },
    { "TREK_JOIN_SECONDS", 1, 1000000, { NULL } },
    { "TREK_CUDA_SYNC", 0, 1, { NULL } },
    { "TREK_CUDA_TUNE", 0, 1, { NULL } },
    { "TREK_F32_PRODUCTS", 0, 0, { "fma", "tiles" } },
    { "TREK_BF16_PRODUCTS", 0, 0, { "fma", "tiles", "dots" } },
};

static trek_status check(const rule *r)
{
    const char *text = setting(r->name);
    char known[200];
    long value;
    int n = 0;
    while (n < 4 && r->words[n])
        n++;
    if (!text || (n ? find_choice(text, r->words, n) >= 0 : read_number(text, r->low, r->high, &value)))
        return TREK_OK;
    if (n)
        return trek_fail(TREK_ERR_ARGUMENT, "environment: %s=%.80s; must be %s", r->name, text,
                         list_choices(r->words, n, known, sizeof known));
    return trek_fail(TREK_ERR_ARGUMENT, "environment: %s=%.80s; must be a whole number from %ld to %ld", r->name, text, r->low,
                     r->high);
}

trek_status trek_environment_check(void)
{
    trek_status status = TREK_OK;
    for (size_t k = 0; k < sizeof rules / sizeof *rules; k++) {
        trek_status one = check(&rules[k]);
        status = status == TREK_OK ? one : status;
    }
    return status;
}
