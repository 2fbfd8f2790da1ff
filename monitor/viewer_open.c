/* SPDX-License-Identifier: Apache-2.0 */
/* What libtrek.so has of monitor/viewer/: functions that open the plug-in libtrek-monitor and call its own. libtrek.a
 * has the plug-in's own in their place. */
#include "monitor/viewer.h"

#include <pthread.h>
#include <stdlib.h>

#include "tensor/plugin.h"
#include "tensor/status_internal.h"
#include "tensor/version.h"

#define DIGITS(number) #number
#define PACKAGE(major, minor) "libtrek" DIGITS(major) "." DIGITS(minor) "-monitor"

static trek_viewer opened;
static char problem[450];

static void open_once(void)
{
    if (!trek_plugin_fill("trek-monitor", TREK_VIEWER_OPEN, TREK_VIEWER_ABI, &opened, problem, sizeof problem))
        opened.abi = 0;
}

/* Returns the functions, or NULL with UNSUPPORTED. */
static const trek_viewer *viewer_for(const char *function)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, open_once);
    if (opened.abi)
        return &opened;
    trek_fail(TREK_ERR_UNSUPPORTED, "%s: it needs libtrek-monitor, which the package %s installs: %s", function,
              PACKAGE(TREK_VERSION_MAJOR, TREK_VERSION_MINOR), problem);
    return NULL;
}

trek_page *trek_page_serve(const trek_page_opts *opts)
{
    const trek_viewer *viewer = viewer_for("page_serve");
    return viewer ? viewer->page_serve(opts) : NULL;
}

/* Most programs show no page; they do without the plug-in. */
trek_page *trek_page_from_environment(const char *folder)
{
    const char *text = getenv("TREK_MONITOR");
    const trek_viewer *viewer = text && *text ? viewer_for("page_from_environment") : NULL;
    return viewer ? viewer->page_from_environment(folder) : NULL;
}

/* A page exists only if the plug-in is open. */
const char *trek_page_address(const trek_page *page) { return page ? opened.page_address(page) : ""; }

void trek_page_free(trek_page **page)
{
    if (page && *page)
        opened.page_free(page);
}

trek_status trek_export_csv(const char *run, const char *path)
{
    const trek_viewer *viewer = viewer_for("export_csv");
    return viewer ? viewer->export_csv(run, path) : trek_error_status();
}

trek_status trek_export_tensorboard(const char *run, const char *path)
{
    const trek_viewer *viewer = viewer_for("export_tensorboard");
    return viewer ? viewer->export_tensorboard(run, path) : trek_error_status();
}

trek_status trek_export_mlflow(const char *run, const char *mlruns)
{
    const trek_viewer *viewer = viewer_for("export_mlflow");
    return viewer ? viewer->export_mlflow(run, mlruns) : trek_error_status();
}

char *trek_export_open_metrics(const char *run)
{
    const trek_viewer *viewer = viewer_for("export_open_metrics");
    return viewer ? viewer->export_open_metrics(run) : NULL;
}

trek_status trek_report_write(const char *path, const char *const *runs, int n)
{
    const trek_viewer *viewer = viewer_for("report_write");
    return viewer ? viewer->report_write(path, runs, n) : trek_error_status();
}

trek_status trek_viewer_event_begin(trek_text *out, double time)
{
    const trek_viewer *viewer = viewer_for("monitor_new: tensorboard");
    return viewer ? viewer->viewer_event_begin(out, time) : trek_error_status();
}

trek_status trek_viewer_event_line(trek_text *out, const char *line, size_t length, int process, int64_t *step)
{
    const trek_viewer *viewer = viewer_for("monitor_new: tensorboard");
    return viewer ? viewer->viewer_event_line(out, line, length, process, step) : trek_error_status();
}
