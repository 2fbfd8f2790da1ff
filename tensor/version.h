/* SPDX-License-Identifier: Apache-2.0 */
/* The version, written down here alone: the build reads it for the library's name, pkg-config and all else. What stays
 * compatible from one version to the next is said in CONTRIBUTING.md. */
#ifndef TREK_TENSOR_VERSION_H
#define TREK_TENSOR_VERSION_H

#include "tensor/common.h"

TREK_BEGIN

/* Of the headers that a program is compiled with. */
#define TREK_VERSION_MAJOR 0
#define TREK_VERSION_MINOR 1
#define TREK_VERSION_PATCH 0

/* Of the library that it runs with: "major.minor.patch", for the life of the program. */
TREK_API const char *trek_version(void);

TREK_END

#endif
