/* SPDX-License-Identifier: Apache-2.0 */
/* What every public header starts from: visibility, C linkage, the three
 * marks that option structs understand. */
#ifndef TREK_TENSOR_COMMON_H
#define TREK_TENSOR_COMMON_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#if defined(TREK_PLUGIN) /* its functions of the same names are its own */
#define TREK_API
#define TREK_PRINTF(text, first) __attribute__((format(printf, text, first)))
#elif defined(__GNUC__)
#define TREK_API __attribute__((visibility("default")))
#define TREK_PRINTF(text, first) __attribute__((format(printf, text, first)))
#else
#define TREK_API
#define TREK_PRINTF(text, first)
#endif

#ifdef __cplusplus
#define TREK_BEGIN extern "C" {
#define TREK_END }
#else
#define TREK_BEGIN
#define TREK_END
#endif

/* In option structs a field left 0 means its documented default. TREK_OFF
 * turns a feature off; TREK_ZERO stands for a real zero in any field, of whatever
 * type of number, whose default is not zero: { .lr = TREK_ZERO }. What takes a
 * number that may have been computed says so: { .lr = lr == 0 ? TREK_ZERO : lr }.
 * Plain arguments of functions mean what they are. */
#define TREK_OFF (-1)
#define TREK_ZERO (-2147483647 - 1) /* exact in every type of a field */

#endif
