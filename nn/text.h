/* SPDX-License-Identifier: Apache-2.0 */
/* A string that grows. */
#ifndef TREK_NN_TEXT_H
#define TREK_NN_TEXT_H

#include "tensor/status.h"

typedef struct trek_text {
    char *data;               /* NUL-terminated once something was added */
    size_t length, capacity;
    bool failed;              /* out of memory: later calls do nothing */
} trek_text;

void trek_text_bytes(trek_text *text, const char *bytes, size_t count);
void trek_text_add(trek_text *text, const char *string);
void trek_text_format(trek_text *text, const char *format, ...) TREK_PRINTF(2, 3); /* only integers and strings, because of the
                                                                                    * locale */
/* Writes the shortest decimal number that reads back as this value, always with a point; also "nan", "inf" and
 * "-inf". `buffer` has at least 40 bytes and is returned. */
char *trek_text_number(double value, char *buffer);
/* Returns the string ("" if nothing was added), to be freed with trek_free, or NULL with MEMORY if a call failed. The
 * text is empty afterwards. */
char *trek_text_take(trek_text *text);
void trek_text_clear(trek_text *text);

#endif
