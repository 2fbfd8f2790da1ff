/* SPDX-License-Identifier: Apache-2.0 */
/* A pole on a cart that is pushed left or right (Barto, Sutton and Anderson, 1983), which reinforce.c and dqn.c balance. */
#ifndef TREK_EXAMPLES_CARTPOLE_H
#define TREK_EXAMPLES_CARTPOLE_H

#include <math.h>
#include <stdbool.h>
#include <stdint.h>

enum { CART_STATE = 4, CART_ACTIONS = 2 };

typedef struct cart {
    double x, speed, angle, turning;
    uint32_t random;     /* of this episode */
    int steps;
    bool fell;           /* the pole, or the cart has left the track */
} cart;

/* Uniform in (0, 1). */
static inline double cart_random(cart *c)
{
    c->random ^= c->random << 13, c->random ^= c->random >> 17, c->random ^= c->random << 5;
    return ((c->random >> 8) + 0.5) * 0x1p-24;
}

/* An episode is the same for the same seed. */
static inline void cart_begin(cart *c, uint32_t seed)
{
    *c = (cart){ .random = seed * 0x9e3779b9u ^ 0x7f4a7c15u };
    c->random += c->random == 0;
    for (int k = 0; k < 8; k++)
        cart_random(c);
    double *state[] = { &c->x, &c->speed, &c->angle, &c->turning };
    for (int k = 0; k < CART_STATE; k++)
        *state[k] = 0.1 * cart_random(c) - 0.05;
}

static inline void cart_observe(const cart *c, float *state)
{
    state[0] = (float)c->x, state[1] = (float)c->speed, state[2] = (float)c->angle, state[3] = (float)c->turning;
}

/* Equations of motion without friction, by Euler's method: 1 kg cart, 0.1 kg pole 1 m long, +-10 N, 20 ms. */
static inline void cart_push(cart *c, int action)
{
    const double gravity = 9.8, pole = 0.1, total = 1.1, half = 0.5, dt = 0.02;
    double force = action ? 10 : -10, s = sin(c->angle), k = cos(c->angle);
    double common = (force + pole * half * c->turning * c->turning * s) / total;
    double turn = (gravity * s - k * common) / (half * (4.0 / 3.0 - pole * k * k / total));
    double pull = common - pole * half * turn * k / total;
    c->x += dt * c->speed;
    c->speed += dt * pull;
    c->angle += dt * c->turning;
    c->turning += dt * turn;
    c->steps++;
    c->fell = fabs(c->x) > 2.4 || fabs(c->angle) > 12 * acos(-1.0) / 180;
}

#endif
