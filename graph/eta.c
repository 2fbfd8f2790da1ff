/* SPDX-License-Identifier: Apache-2.0 */
/* The time that is left. It stands alone, so that a program which shows runs and computes nothing links nothing that does. */
#include <math.h>

#include "graph/observe.h"

double trek_eta(double elapsed, double done, double whole)
{
    return done > 0 && elapsed >= 0 && whole >= done ? elapsed / done * (whole - done) : (double)NAN;
}
