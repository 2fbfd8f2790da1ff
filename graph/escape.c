/* SPDX-License-Identifier: Apache-2.0 */
/* Text output besides trek_text: escaping, and numbers without the locale. */
#include "graph/graph_internal.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

void trek_text_add_escaped(trek_text *text, const char *string)
{
    for (const char *c = string; *c; c++) {
        unsigned char byte = (unsigned char)*c;
        if (byte == '"' || byte == '\\')
            trek_text_format(text, "\\%c", byte);
        else if (byte == '\n')
            trek_text_add(text, "\\n");
        else if (byte < 0x20 || byte == 0x7f)
            trek_text_format(text, "\\u%04x", byte);
        else
            trek_text_bytes(text, c, 1);
    }
}

char *trek_number_text(double value, int digits, char *buffer)
{
    if (!isfinite(value))
        return strcpy(buffer, "null");
    char raw[64];
    snprintf(raw, sizeof raw, "%.*g", digits > 17 ? 17 : digits, value);
    char *to = buffer;
    for (const char *c = raw; *c; c++)
        if (strchr("0123456789+-e", *c))
            *to++ = *c;
        else if (to == buffer || to[-1] != '.')
            *to++ = '.'; /* the locale's decimal point, which may have several bytes */
    *to = 0;
    return buffer;
}
