/* SPDX-License-Identifier: Apache-2.0 */
/* ResNet-18, MobileNetV2, UNet. */
#include "tests/zoo/zoo.h"

/* --- He and others 2016 ------------------------------------------------------------------------ */

/* conv1, bn1, conv2, bn2, downsample or nothing */
static trek_var *block_forward(trek_module *self, trek_var *x)
{
    zoo_part *b = (zoo_part *)self;
    trek_var *y = trek_relu(trek_forward(b->m[1], trek_forward(b->m[0], x)));
    y = trek_forward(b->m[3], trek_forward(b->m[2], y));
    return trek_relu(trek_add(y, b->m[4] ? trek_forward(b->m[4], x) : x));
}

ZOO_CLASS(block, .forward = block_forward);

static trek_module *block(int64_t in, int64_t out, int64_t stride)
{
    zoo_part *b = zoo_new(&block_class);
    zoo_add(b, 0, "conv1", zoo_conv(in, out, 3, stride, 1, 1, false));
    zoo_add(b, 1, "bn1", zoo_batch_norm(out));
    zoo_add(b, 2, "conv2", zoo_conv(out, out, 3, 1, 1, 1, false));
    zoo_add(b, 3, "bn2", zoo_batch_norm(out));
    if (stride != 1 || in != out)
        zoo_add(b, 4, "downsample", ZOO_SEQUENTIAL(zoo_conv(in, out, 1, stride, 0, 1, false), zoo_batch_norm(out)));
    return zoo_done(b);
}

/* conv1, bn1, pool, layer1 to layer4, fc */
static trek_var *resnet_forward(trek_module *self, trek_var *x)
{
    zoo_part *r = (zoo_part *)self;
    x = trek_forward(r->m[2], trek_relu(trek_forward(r->m[1], trek_forward(r->m[0], x))));
    for (int k = 3; k < 7; k++)
        x = trek_forward(r->m[k], x);
    return trek_forward(r->m[7], trek_flatten(trek_adaptive_avg_pool2d(x, 1, 1), 1, -1));
}

ZOO_CLASS(resnet, .forward = resnet_forward);

static trek_module *resnet_build(void)
{
    static const char *const names[] = { "layer1", "layer2", "layer3", "layer4" };
    zoo_part *r = zoo_new(&resnet_class);
    zoo_add(r, 0, "conv1", zoo_conv(3, 8, 7, 2, 3, 1, false));
    zoo_add(r, 1, "bn1", zoo_batch_norm(8));
    zoo_add(r, 2, "maxpool", trek_nn_max_pool2d_with(&(trek_pool_opts){ .kernel = { 3 }, .stride = { 2 }, .padding = { 1, 1 } }));
    for (int k = 0; k < 4; k++) {
        int64_t in = k ? 8 << (k - 1) : 8, out = 8 << k;
        zoo_add(r, 3 + k, names[k], ZOO_SEQUENTIAL(block(in, out, k ? 2 : 1), block(out, out, 1)));
    }
    zoo_add(r, 7, "fc", zoo_linear(64, 10, true));
    return zoo_done(r);
}

static trek_var *resnet_loss(trek_module *model, int step, trek_var **output)
{
    *output = trek_forward(model, zoo_image(step, trek_dims(4, 3, 64, 64)));
    return trek_cross_entropy(*output, zoo_classes(step, 4, 10));
}

const zoo_model zoo_resnet18 = { "resnet18", resnet_build, resnet_loss, { NULL } };

/* --- Sandler and others 2018 --------------------------------------------------------------------- */

static trek_var *relu6_forward(trek_module *self, trek_var *x)
{
    (void)self;
    return trek_clamp(x, 0, 6);
}

ZOO_CLASS(relu6, .forward = relu6_forward);
static trek_module *relu6(void) { return zoo_done(zoo_new(&relu6_class)); }

static trek_module *conv_bn(int64_t in, int64_t out, int64_t kernel, int64_t stride, int64_t groups)
{
    return ZOO_SEQUENTIAL(zoo_conv(in, out, kernel, stride, kernel / 2, groups, false), zoo_batch_norm(out), relu6());
}

/* conv; n[0]: with a residual */
static trek_var *inverted_forward(trek_module *self, trek_var *x)
{
    zoo_part *b = (zoo_part *)self;
    trek_var *y = trek_forward(b->m[0], x);
    return b->n[0] ? trek_add(x, y) : y;
}

ZOO_CLASS(inverted, .forward = inverted_forward);

static trek_module *inverted(int64_t in, int64_t out, int64_t stride, int64_t expand)
{
    int64_t wide = in * expand;
    zoo_part *b = zoo_new(&inverted_class);
    trek_module *conv = trek_nn_sequential(NULL, 0);
    if (expand > 1)
        trek_nn_sequential_add(conv, conv_bn(in, wide, 1, 1, 1));
    trek_nn_sequential_add(conv, conv_bn(wide, wide, 3, stride, wide));
    trek_nn_sequential_add(conv, zoo_conv(wide, out, 1, 1, 0, 1, false));
    trek_nn_sequential_add(conv, zoo_batch_norm(out));
    b->n[0] = stride == 1 && in == out;
    zoo_add(b, 0, "conv", conv);
    return zoo_done(b);
}

static trek_var *mobilenet_forward(trek_module *self, trek_var *x)
{
    zoo_part *m = (zoo_part *)self;
    return trek_forward(m->m[1], trek_mean(trek_forward(m->m[0], x), trek_dims(2, 3), false));
}

ZOO_CLASS(mobilenet, .forward = mobilenet_forward);

static trek_module *mobilenet_build(void)
{
    static const int64_t rows[3][4] = { { 1, 8, 1, 1 }, { 6, 12, 2, 2 }, { 6, 16, 2, 2 } }; /* expand, out, count, stride */
    trek_module *features = ZOO_SEQUENTIAL(conv_bn(3, 8, 3, 2, 1));
    int64_t in = 8;
    for (int r = 0; r < 3; r++)
        for (int64_t k = 0; k < rows[r][2]; k++) {
            trek_nn_sequential_add(features, inverted(in, rows[r][1], k ? 1 : rows[r][3], rows[r][0]));
            in = rows[r][1];
        }
    trek_nn_sequential_add(features, conv_bn(in, 64, 1, 1, 1));
    zoo_part *m = zoo_new(&mobilenet_class);
    zoo_add(m, 0, "features", features);
    zoo_add(m, 1, "classifier", ZOO_SEQUENTIAL(trek_nn_dropout(TREK_ZERO), zoo_linear(64, 10, true)));
    return zoo_done(m);
}

static trek_var *mobilenet_loss(trek_module *model, int step, trek_var **output)
{
    *output = trek_forward(model, zoo_image(step, trek_dims(8, 3, 40, 40)));
    return trek_cross_entropy(*output, zoo_classes(step, 8, 10));
}

const zoo_model zoo_mobilenet_v2 = { "mobilenet_v2", mobilenet_build, mobilenet_loss, { NULL } };

/* --- Ronneberger and others 2015, padded, with batch norms ------------------------------------------ */

static trek_module *twice(int64_t in, int64_t out)
{
    return ZOO_SEQUENTIAL(zoo_conv(in, out, 3, 1, 1, 1, false), zoo_batch_norm(out), trek_nn_relu(),
                          zoo_conv(out, out, 3, 1, 1, 1, false), zoo_batch_norm(out), trek_nn_relu());
}

/* inc, down1, down2, up1, conv1, up2, conv2, outc, pool */
static trek_var *unet_forward(trek_module *self, trek_var *x)
{
    trek_module **m = ((zoo_part *)self)->m;
    trek_var *a = trek_forward(m[0], x), *b = trek_forward(m[1], trek_forward(m[8], a));
    trek_var *c = trek_forward(m[2], trek_forward(m[8], b));
    trek_var *y = trek_forward(m[4], trek_cat((trek_var *[]){ b, trek_forward(m[3], c) }, 2, 1));
    y = trek_forward(m[6], trek_cat((trek_var *[]){ a, trek_forward(m[5], y) }, 2, 1));
    return trek_forward(m[7], y);
}

ZOO_CLASS(unet, .forward = unet_forward);

static trek_module *unet_build(void)
{
    zoo_part *u = zoo_new(&unet_class);
    zoo_add(u, 0, "inc", twice(3, 6));
    zoo_add(u, 1, "down1", twice(6, 12));
    zoo_add(u, 2, "down2", twice(12, 24));
    zoo_add(u, 3, "up1", zoo_conv_transpose(24, 12, 2, 2, 0, true));
    zoo_add(u, 4, "conv1", twice(24, 12));
    zoo_add(u, 5, "up2", zoo_conv_transpose(12, 6, 2, 2, 0, true));
    zoo_add(u, 6, "conv2", twice(12, 6));
    zoo_add(u, 7, "outc", zoo_conv(6, 4, 1, 1, 0, 1, true));
    zoo_add(u, 8, "pool", trek_nn_max_pool2d(2));
    return zoo_done(u);
}

static trek_var *unet_loss(trek_module *model, int step, trek_var **output)
{
    *output = trek_forward(model, zoo_image(step, trek_dims(2, 3, 24, 24)));
    return trek_cross_entropy(*output, trek_reshape(zoo_classes(step, 2 * 24 * 24, 4), trek_dims(2, 24, 24)));
}

const zoo_model zoo_unet = { "unet", unet_build, unet_loss, { NULL } };
