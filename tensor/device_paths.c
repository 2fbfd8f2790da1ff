/* SPDX-License-Identifier: Apache-2.0 */
/* Which implementations a backend has used how often, as numbers and as text. */
#include "tensor/device_paths.h"

#include <stdio.h>

#include "tensor/backend.h"

enum { LINE = 512, MOST = 64 }; /* bytes of a line, the rest of which is cut off; rows of a report */

/* Returns the backend of a device that the process has used; NULL otherwise, because it is not opened for this. */
static const trek_backend *backend_of(trek_device device)
{
    const trek_backend *backend = (unsigned)device.type < TREK_DEVICE_TYPE_COUNT ? trek_backends[device.type] : NULL;
    return backend && backend->paths ? backend : NULL;
}

int trek_device_paths(trek_device device, trek_device_path *paths, int capacity)
{
    device = trek_device_resolve(device);
    const trek_backend *backend = backend_of(device);
    return backend ? backend->paths(device.index, paths, paths && capacity > 0 ? capacity : 0) : 0;
}

void trek_device_paths_reset(trek_device device)
{
    device = trek_device_resolve(device);
    const trek_backend *backend = backend_of(device);
    if (backend)
        backend->paths_reset(device.index);
}

static void put_line(char *line, const char *name, const trek_device_path *row)
{
    int n = snprintf(line, LINE, "path: %s %s %s: %lld calls", name, row->what, row->path, (long long)row->calls);
    if (row->refused && n > 0 && n < LINE)
        n += snprintf(line + n, (size_t)(LINE - n), ", %lld refused (the last: %s)", (long long)row->refused,
                      row->reason ? row->reason : "?");
    if (n >= LINE - 1)
        n = LINE - 2;
    snprintf(line + n, (size_t)(LINE - n), "\n");
}

char *trek_device_report(trek_device device)
{
    trek_device_path rows[MOST];
    char line[LINE], name[16];
    int n = trek_device_paths(device, rows, MOST);
    n = n < MOST ? n : MOST;
    size_t length = 0;
    char *text = trek_alloc((size_t)n * LINE + 1);
    if (!text)
        return NULL;
    trek_device_name(device, name, sizeof name);
    text[0] = 0;
    for (int k = 0; k < n; k++)
        if (rows[k].calls || rows[k].refused) {
            put_line(line, name, &rows[k]);
            length += (size_t)snprintf(text + length, LINE, "%s", line);
        }
    return text;
}
