/* SPDX-License-Identifier: Apache-2.0 */
/* State in 8 bits, plainly, in f64: the code book as the paper's authors make it, and blocks by search. */
#ifndef TREK_TESTS_CODED_BLOCKS_H
#define TREK_TESTS_CODED_BLOCKS_H

#include "optim/optimizer_internal.h"

enum { BLOCK = 256 };

/* The 256 numbers, upwards; and where a code of the library is among them. */
void make_book(bool with_sign, double *book);
int place_of(int code, bool with_sign);

/* That the state of one is the other's, which keeps it in f32, in codes. */
void check_codes(trek_optimizer *coded, trek_optimizer *wide);

#endif
