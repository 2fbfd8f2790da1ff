/* SPDX-License-Identifier: Apache-2.0 */
/* A string that grows. Internal. */
#ifndef TREK_NN_TEXT_H
#define TREK_NN_TEXT_H

#include "tensor/status.h"

typedef struct trek_text {
    char *data;               /* ends in NUL once something was added */
    size_t length, capacity;
    bool failed;              /* no memory: later calls do nothing */
} trek_text;

void trek_text_bytes(trek_text *text, const char *bytes, size_t count);
void trek_text_add(trek_text *text, const char *string);
void trek_text_format(trek_text *text, const char *format, ...) TREK_PRINTF(2, 3); /* integers and strings only: no locale */
/* The shortest decimal number that reads back as this value, with a point whatever the locale; "nan", "inf", "-inf".
 * buffer: at least 40 bytes; returned. */
char *trek_text_number(double value, char *buffer);
/* The string ("" when nothing was added), to be freed by trek_free;
 * NULL and MEMORY if a call failed. The text is empty afterwards. */
char *trek_text_take(trek_text *text);
void trek_text_clear(trek_text *text);

#endif
