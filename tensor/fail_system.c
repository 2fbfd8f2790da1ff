/* SPDX-License-Identifier: Apache-2.0 */
/* Errors of the system, in the library and its plug-ins. */
#include <errno.h>
#include <string.h>

#include "tensor/status_internal.h"

trek_status trek_fail_system(const char *path, const char *what)
{
    char text[128];
    return trek_fail(TREK_ERR_IO, "%s: %s: %s", path, what, strerror_r(errno, text, sizeof text));
}
