/* SPDX-License-Identifier: Apache-2.0 */
/* The version of trek. The build reads it from this file only. CONTRIBUTING.md says what stays compatible from one version to
 * the next. */
#ifndef TREK_TENSOR_VERSION_H
#define TREK_TENSOR_VERSION_H

#include "tensor/common.h"

TREK_BEGIN

/* The first number of the version of the headers that a program is compiled with. */
#define TREK_VERSION_MAJOR 0
/* The second number of that version. */
#define TREK_VERSION_MINOR 2
/* The third number of that version. */
#define TREK_VERSION_PATCH 0

/* Returns the version of the library that the program runs with, as "major.minor.patch". The string is never freed. */
TREK_API const char *trek_version(void);

TREK_END

#endif
