/* SPDX-License-Identifier: Apache-2.0 */
/* The only exported function of the plug-in: it fills the table. */
#include <stdio.h>

#include "monitor/viewer.h"
#include "tensor/plugin.h"

__attribute__((visibility("default"))) trek_status trek_monitor_open(int abi, const trek_host *host, void *table, char *why,
                                                                     size_t size);

trek_status trek_monitor_open(int abi, const trek_host *host, void *table, char *why, size_t size)
{
    if (abi != TREK_VIEWER_ABI || host->abi != TREK_BACKEND_ABI) {
        snprintf(why, size, "libtrek-monitor is of another version of trek");
        return TREK_ERR_UNSUPPORTED;
    }
    trek_viewer *viewer = table;
    trek_plugin_host = host;
    viewer->abi = TREK_VIEWER_ABI;
#define FILL(name) viewer->name = trek_##name;
    TREK_VIEWER_FUNCTIONS(FILL)
#undef FILL
    return TREK_OK;
}
