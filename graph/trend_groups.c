/* SPDX-License-Identifier: Apache-2.0 */
/* Several trends at once. */
#include "graph/observe.h"

static bool is_so(const trek_trend *trend, trek_trend_state state, int64_t window, double tolerance)
{
    switch (state) {
    case TREK_TREND_STATE_STALLED: return trek_trend_stalled(trend, window, tolerance);
    case TREK_TREND_STATE_IMPROVING: return trek_trend_improving(trend, window);
    case TREK_TREND_STATE_CONVERGED: return trek_trend_converged(trend, window, tolerance);
    }
    return false;
}

static int count(const trek_trend *const *trends, int n, trek_trend_state state, int64_t window, double tolerance)
{
    int so = 0;
    for (int k = 0; trends && k < n; k++)
        so += is_so(trends[k], state, window, tolerance);
    return so;
}

bool trek_trends_all(const trek_trend *const *trends, int n, trek_trend_state state, int64_t window, double tolerance)
{
    return n > 0 && count(trends, n, state, window, tolerance) == n;
}

bool trek_trends_any(const trek_trend *const *trends, int n, trek_trend_state state, int64_t window, double tolerance)
{
    return count(trends, n, state, window, tolerance) > 0;
}

void trek_trends_slopes(const trek_trend *const *trends, int n, int64_t window, double *slopes)
{
    for (int k = 0; trends && slopes && k < n; k++)
        slopes[k] = trek_trend_slope(trends[k], window);
}

double trek_trends_mean_slope(const trek_trend *const *trends, int n, int64_t window)
{
    double sum = 0;
    for (int k = 0; trends && k < n; k++)
        sum += trek_trend_slope(trends[k], window);
    return trends && n > 0 ? sum / n : 0;
}
