/* SPDX-License-Identifier: Apache-2.0 */
/* Histograms of tensors. */
#include <math.h>

#include "monitor/monitor_internal.h"

enum { BINS = 64 };

typedef struct summary {
    int64_t counts[BINS], finite, nonfinite;
    double min, max, mean, std;
} summary;

/* Computes mean and deviation by Welford's recurrence (1962). */
static void count(summary *s, const double *values, int64_t n)
{
    double squares = 0;
    for (int64_t k = 0; k < n; k++) {
        double x = values[k];
        if (!isfinite(x)) {
            s->nonfinite++;
            continue;
        }
        s->min = s->finite == 0 || x < s->min ? x : s->min;
        s->max = s->finite == 0 || x > s->max ? x : s->max;
        double off = x - s->mean;
        s->mean += off / (double)++s->finite;
        squares += off * (x - s->mean);
    }
    s->std = s->finite ? sqrt(squares / (double)s->finite) : 0;
    double scale = s->max > s->min ? BINS / (s->max - s->min) : 0;
    for (int64_t k = 0; k < n; k++)
        if (isfinite(values[k])) {
            int bin = scale > 0 && isfinite(scale) ? (int)((values[k] - s->min) * scale) : 0;
            s->counts[bin < BINS ? bin : BINS - 1]++;
        }
}

/* If all values are equal, there is one bin around them. */
static double edge(const summary *s, int k)
{
    double width = s->max - s->min;
    if (!(width > 0))
        return s->min - 0.5 + (double)k / BINS;
    return k == BINS ? s->max : s->min + width * ((double)k / BINS);
}

trek_status trek_monitor_histogram_of(trek_monitor *m, const char *name, const char *of, int64_t step, const trek_tensor *values)
{
    int64_t n = trek_tensor_numel(values);
    double *host = trek_alloc((size_t)(n ? n : 1) * sizeof *host);
    trek_status status = host ? trek_tensor_to_host(values, TREK_F64, host, (size_t)n * sizeof *host) : TREK_ERR_MEMORY;
    if (status == TREK_OK) {
        summary s = { 0 };
        trek_text line = { 0 };
        count(&s, host, n);
        if (!(s.max > s.min)) { /* the value is in the middle */
            s.counts[BINS / 2] = s.counts[0];
            s.counts[0] = 0;
        }
        trek_monitor_begin(&line, "histogram");
        trek_monitor_word(&line, "name", name);
        trek_monitor_word(&line, "of", of);
        trek_monitor_whole(&line, "step", step);
        trek_text_add(&line, ",\"edges\":[");
        for (int k = 0; k <= BINS; k++) {
            trek_text_add(&line, k ? "," : "");
            trek_monitor_value(&line, edge(&s, k));
        }
        trek_text_add(&line, "],\"counts\":[");
        for (int k = 0; k < BINS; k++)
            trek_text_format(&line, "%s%lld", k ? "," : "", (long long)s.counts[k]);
        trek_text_add(&line, "]");
        double none = (double)NAN;
        trek_monitor_number(&line, "min", s.finite ? s.min : none);
        trek_monitor_number(&line, "max", s.finite ? s.max : none);
        trek_monitor_number(&line, "mean", s.finite ? s.mean : none);
        trek_monitor_number(&line, "std", s.finite ? s.std : none);
        trek_monitor_whole(&line, "nonfinite", s.nonfinite);
        trek_monitor_write(m, &line);
    }
    trek_free(host);
    return status;
}
