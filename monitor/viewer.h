/* SPDX-License-Identifier: Apache-2.0 */
/* The interface between the library and the plug-in libtrek-monitor, which reads watched runs: the live page, reports,
 * and exports (monitor/viewer/). The plug-in is opened when one of its functions is first called. libtrek.a contains
 * it. */
#ifndef TREK_MONITOR_VIEWER_H
#define TREK_MONITOR_VIEWER_H

#include "monitor/export.h"
#include "monitor/page.h"
#include "monitor/report.h"
#include "nn/text.h"

/* Appends what TensorBoard's event file begins with. */
trek_status trek_viewer_event_begin(trek_text *out, double time);
/* Appends what a line of a watched run means in TensorBoard. *step is the last step of earlier lines, and becomes that
 * of this one. A line without a counterpart appends nothing. */
trek_status trek_viewer_event_line(trek_text *out, const char *line, size_t length, int process, int64_t *step);

/* Its functions, as F(name) for trek_NAME. Whoever changes the list, or a type that occurs in it, raises the number. */
#define TREK_VIEWER_FUNCTIONS(F)                                                                                                 \
    F(page_serve) F(page_from_environment) F(page_address) F(page_free) F(export_csv) F(export_tensorboard) F(export_mlflow)     \
    F(export_open_metrics) F(report_write) F(viewer_event_begin) F(viewer_event_line)
#define TREK_VIEWER_ABI 1

typedef struct trek_viewer {
    int abi;                      /* TREK_VIEWER_ABI */
#define TREK_VIEWER_MEMBER(name) __typeof__(&trek_##name) name;
    TREK_VIEWER_FUNCTIONS(TREK_VIEWER_MEMBER)
#undef TREK_VIEWER_MEMBER
} trek_viewer;

/* The function that the plug-in exports: a trek_plugin_fill_fn. */
#define TREK_VIEWER_OPEN "trek_monitor_open"

#endif
