/* SPDX-License-Identifier: Apache-2.0 */
/* Texts that are kept once, for as long as the program: names, module paths and
 * shapes of what is recorded. A number stands for a text. Internal. */
#ifndef TREK_TENSOR_INTERN_H
#define TREK_TENSOR_INTERN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum {
    TREK_INTERN_LENGTH = 500,      /* bytes of a text; what is longer is cut */
    TREK_INTERN_LIMIT = 1 << 15,   /* texts in all */
    TREK_INTERN_FEW = 3 << 13,     /* for what may come in any number (shapes): so many texts, the rest for others */
};

/* The text's number, from 1; 0 for an empty text, and where there are `limit` texts already or no memory. From any
 * thread; a text that is known is found without a lock. */
uint32_t trek_intern(const char *text, size_t length, uint32_t limit);
/* The text of a number that trek_intern gave; "" for 0. Lives as long as the program. */
const char *trek_interned(uint32_t number);

#endif
