/* SPDX-License-Identifier: Apache-2.0 */
/* The remaining time. It has its own file, so that a program that only shows runs does not link code that computes. */
#include <math.h>

#include "graph/observe.h"

double trek_eta(double elapsed, double done, double whole)
{
    return done > 0 && elapsed >= 0 && whole >= done ? elapsed / done * (whole - done) : (double)NAN;
}
