/* SPDX-License-Identifier: Apache-2.0 */
/* A language model of LSTMs, a variational autoencoder, a GAN. */
#include "tests/zoo/zoo.h"

/* --- Zaremba and others 2014, without dropout: states go on from step to step --------------------- */

static void lstm_free(trek_module *self)
{
    for (int k = 0; k < 2; k++)
        trek_var_release(((zoo_part *)self)->p[k]);
}

ZOO_CLASS(lstm_lm, .free = lstm_free);
/* embedding, lstm, decoder; h and c as the last step left them */
static trek_module *lstm_build(void)
{
    zoo_part *m = zoo_new(&lstm_lm_class);
    zoo_add(m, 0, "embedding", zoo_embedding(61, 24));
    zoo_add(m, 1, "lstm", trek_nn_lstm_with(&(trek_lstm_opts){ .in = 24, .hidden = 28, .layers = 2, .dtype = zoo_dtype,
                                                               .device = zoo_device }));
    zoo_add(m, 2, "decoder", zoo_linear(28, 61, true));
    return zoo_done(m);
}

static trek_var *lstm_loss(trek_module *model, int step, trek_var **output)
{
    zoo_part *m = (zoo_part *)model;
    trek_var *ids = trek_transpose(zoo_tokens(step, 4, 13, 61), 0, 1), *results[3];
    trek_var *inputs[] = { trek_forward(m->m[0], trek_narrow(ids, 0, 0, 12)), NULL, m->p[0], m->p[1] };
    if (trek_forward_results(m->m[1], inputs, 4, results, 3) != TREK_OK)
        return NULL;
    for (int k = 0; k < 2; k++) { /* values alone: gradients end at the step */
        trek_var_release(m->p[k]);
        m->p[k] = trek_var_retain(trek_var_detach(results[1 + k]));
    }
    *output = trek_forward(m->m[2], results[0]);
    return zoo_cross_entropy(*output, trek_narrow(ids, 0, 1, 12));
}

const zoo_model zoo_lstm_lm = { "lstm_lm", lstm_build, lstm_loss, { NULL } };

/* --- Kingma and Welling 2014 -------------------------------------------------------------------------- */

ZOO_CLASS(vae, .forward = NULL);
/* encoder, mean, log_variance, grow, decoder */
static trek_module *vae_build(void)
{
    zoo_part *m = zoo_new(&vae_class);
    zoo_add(m, 0, "encoder", ZOO_SEQUENTIAL(zoo_conv(1, 8, 4, 2, 1, 1, true), trek_nn_relu(), zoo_conv(8, 16, 4, 2, 1, 1, true),
                                            trek_nn_relu(), trek_nn_flatten()));
    zoo_add(m, 1, "mean", zoo_linear(16 * 49, 6, true));
    zoo_add(m, 2, "log_variance", zoo_linear(16 * 49, 6, true));
    zoo_add(m, 3, "grow", zoo_linear(6, 16 * 49, true));
    zoo_add(m, 4, "decoder", ZOO_SEQUENTIAL(trek_nn_relu(), zoo_conv_transpose(16, 8, 4, 2, 1, true), trek_nn_relu(),
                                            zoo_conv_transpose(8, 1, 4, 2, 1, true)));
    return zoo_done(m);
}

static trek_var *vae_loss(trek_module *model, int step, trek_var **output)
{
    trek_module **m = ((zoo_part *)model)->m;
    trek_var *x = trek_add_scalar(trek_mul_scalar(zoo_image(step, trek_dims(4, 1, 28, 28)), 0.5), 0.5);
    trek_var *h = trek_forward(m[0], x), *mean = trek_forward(m[1], h), *log_variance = trek_forward(m[2], h);
    trek_var *noise = zoo_numbers((uint32_t)(2000 + step), trek_dims(4, 6));
    trek_var *z = trek_add(mean, trek_mul(trek_exp(trek_mul_scalar(log_variance, 0.5)), noise));
    *output = trek_forward(m[4], trek_reshape(trek_forward(m[3], z), trek_dims(4, 16, 7, 7)));
    trek_var *terms = trek_sub(trek_sub(trek_add_scalar(log_variance, 1), trek_square(mean)), trek_exp(log_variance));
    trek_var *divergence = trek_mul_scalar(trek_sum(terms, trek_dims_all(), false), -0.5);
    return trek_add(trek_bce_with_logits(*output, x), trek_div_scalar(divergence, 784));
}

const zoo_model zoo_vae = { "vae", vae_build, vae_loss, { NULL } };

/* --- Radford and others 2016 ----------------------------------------------------------------------------- */

ZOO_CLASS(dcgan, .forward = NULL);

static trek_module *dcgan_build(void)
{
    zoo_part *m = zoo_new(&dcgan_class);
    zoo_add(m, 0, "generator",
            ZOO_SEQUENTIAL(zoo_conv_transpose(8, 16, 4, 1, 0, false), zoo_batch_norm(16), trek_nn_relu(),
                           zoo_conv_transpose(16, 8, 4, 2, 1, false), zoo_batch_norm(8), trek_nn_relu(),
                           zoo_conv_transpose(8, 1, 4, 2, 1, false), trek_nn_tanh()));
    zoo_add(m, 1, "discriminator",
            ZOO_SEQUENTIAL(zoo_conv(1, 8, 4, 2, 1, 1, false), trek_nn_leaky_relu(0.2), zoo_conv(8, 16, 4, 2, 1, 1, false),
                           zoo_batch_norm(16), trek_nn_leaky_relu(0.2), zoo_conv(16, 1, 4, 1, 0, 1, false), trek_nn_flatten()));
    return zoo_done(m);
}

/* Even steps are the discriminator's, odd ones the generator's. */
static trek_var *dcgan_loss(trek_module *model, int step, trek_var **output)
{
    trek_module **m = ((zoo_part *)model)->m;
    trek_var *drawn = trek_forward(m[0], zoo_numbers((uint32_t)(2000 + step), trek_dims(6, 8, 1, 1)));
    if (step % 2) {
        trek_var *said = trek_forward(m[1], *output = drawn);
        return trek_bce_with_logits(said, trek_ones_like(said));
    }
    trek_var *real = trek_forward(m[1], zoo_image(step, trek_dims(6, 1, 16, 16)));
    trek_var *false_ = *output = trek_forward(m[1], trek_var_detach(drawn));
    return trek_add(trek_bce_with_logits(real, trek_ones_like(real)), trek_bce_with_logits(false_, trek_zeros_like(false_)));
}

const zoo_model zoo_dcgan = { "dcgan", dcgan_build, dcgan_loss, { "discriminator.", "generator." } };
