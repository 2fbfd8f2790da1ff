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

long trek_environment_number(const char *name, long low, long high, long unset)
{
    const char *text = setting(name);
    if (!text)
        return unset;
    char *end;
    errno = 0;
    bool hex = text[0] == '0' && (text[1] == 'x' || text[1] == 'X');
    long value = strtol(text, &end, hex ? 16 : 10);
    bool digit = (text[0] >= '0' && text[0] <= '9') || text[0] == '-';
    if (digit && *end == '\0' && errno == 0 && value >= low && value <= high)
        return value;
    trek_log_message(TREK_LOG_WARNING, "%s=%.80s is no whole number from %ld to %ld: it is ignored", name, text, low, high);
    return unset;
}

int trek_environment_choice(const char *name, const char *const *choices, int n, int unset)
{
    const char *text = setting(name);
    char known[200] = "";
    if (!text)
        return unset;
    for (int k = 0; k < n; k++) {
        size_t length = strlen(known);
        if (strcmp(text, choices[k]) == 0)
            return k;
        snprintf(known + length, sizeof known - length, "%s%s", k == 0 ? "" : k < n - 1 ? ", " : " or ", choices[k]);
    }
    trek_log_message(TREK_LOG_WARNING, "%s=%.80s is ignored: it takes %s", name, text, known);
    return unset;
}
