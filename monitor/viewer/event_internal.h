/* SPDX-License-Identifier: Apache-2.0 */
/* Protobuf messages, as event files contain them. */
#ifndef TREK_MONITOR_EVENT_INTERNAL_H
#define TREK_MONITOR_EVENT_INTERNAL_H

#include "monitor/viewer/event_file.h"

/* Appends this many bytes of a number, least significant first. */
void trek_event_little(trek_text *out, uint64_t value, int bytes);
/* Each of these appends a field with its number. */
void trek_event_double(trek_text *out, int field, double value);
void trek_event_float(trek_text *out, int field, double value);
void trek_event_packed(trek_text *out, int field, const double *values, int n);
void trek_event_whole(trek_text *out, int field, int64_t value);
void trek_event_string(trek_text *out, int field, const char *text);
/* Appends an embedded message or bytes, and empties it. */
void trek_event_message(trek_text *out, int field, trek_text *message);

/* --- event_graph.c: of a graph's record --- */
void trek_event_graph(trek_text *graph_def, const trek_run_record *record);
void trek_event_run_metadata(trek_text *run_metadata, const trek_run_record *record);

#endif
