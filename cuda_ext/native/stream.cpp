// Binds levels/stream.cpp: python passes addresses of memory whose shapes and dtypes stream.py has checked.
#include "stream.h"

#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <memory>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <vector>

#include "level.h"

SUREFOOT_DECLARE(void stream_run(const Stream<float>& stream, int phases, bool backwards);
                 void stream_run(const Stream<double>& stream, int phases, bool backwards))

namespace nb = nanobind;

namespace surefoot {
namespace {

/// Where a name stands among the enum's values.
template <class E>
E one_of(const nb::dict& settings, const char* key, std::vector<std::string> names) {
  const std::string given = nb::cast<std::string>(settings[key]);
  for (std::size_t i = 0; i < names.size(); ++i)
    if (names[i] == given) return static_cast<E>(i);
  throw std::invalid_argument(std::string(key) + " has no value " + given);
}

StreamSettings read(const nb::dict& given) {
  const auto number = [&](const char* key) { return nb::cast<double>(given[key]); };
  const auto flag = [&](const char* key) { return nb::cast<bool>(given[key]); };
  StreamSettings s;
  s.kind = one_of<StreamKind>(given, "kind", {"td", "q", "sarsa", "ac"});
  s.optimizer = one_of<StreamOptimizer>(given, "optimizer", {"obgd", "adaptive", "sgd"});
  s.cut = one_of<StreamCut>(given, "trace_cut", {"watkins", "official"});
  s.discrete = flag("discrete");
  s.layer_norm = flag("layer_norm");
  s.normalise_observations = flag("normalise_observations");
  s.scale_rewards = flag("scale_rewards");
  s.official_time_limit = flag("official_time_limit");
  s.clear_before_add = flag("clear_before_add");
  s.observations = nb::cast<long>(given["observation_dim"]);
  s.actions = nb::cast<long>(given["action_dim"]);
  s.discount = number("discount");
  s.decay = number("discount") * number("decay");
  s.step_size = number("step_size");
  s.entropy = number("entropy");
  s.beta2 = number("beta2");
  s.epsilon_adaptive = number("epsilon_adaptive");
  s.learning_rate = number("learning_rate");
  return s;
}

/// K streams and the scratch that they share; `run` allocates nothing.
template <class T>
class StreamOf {
 public:
  StreamOf(const nb::dict& settings, long streams, const nb::dict& addresses) {
    if (streams < 1) throw std::invalid_argument("at least one stream is needed");
    stream_.settings = read(settings);
    stream_.streams = streams;
    const StreamSettings& s = stream_.settings;
    stream_.noises = !s.discrete ? s.actions : s.kind == StreamKind::ac ? 1 : 2;
    const bool of_actions = s.kind == StreamKind::q || s.kind == StreamKind::sarsa;
    const std::vector<long> hidden = nb::cast<std::vector<long>>(settings["hidden"]);
    lay_out(stream_.critic, hidden, of_actions ? s.actions : 1, nb::cast<double>(settings["kappa_critic"]));
    lay_out(stream_.actor, hidden, s.discrete ? s.actions : 2 * s.actions, nb::cast<double>(settings["kappa_actor"]));
    stream_.critic.stride = nb::cast<long>(addresses["critic_stride"]);
    stream_.actor.stride = nb::cast<long>(addresses["actor_stride"]);
    bind(addresses);
    place_scratch();
  }

  void run(int phases) {
    backwards_ = !backwards_;
    if (stream_.streams < let_others_run) {
      SUREFOOT_CALL(stream_run, stream_, phases, backwards_);
    } else {
      const nb::gil_scoped_release release;
      SUREFOOT_CALL(stream_run, stream_, phases, backwards_);
    }
  }

 private:
  static constexpr long let_others_run = 8;  // streams; with fewer, python's lock costs more than it gives

  void lay_out(StreamNetwork<T>& net, const std::vector<long>& hidden, long outputs, double kappa) {
    if (hidden.size() + 1 > stream_most_layers) throw std::invalid_argument("a network has 1 to 17 layers");
    net.layers = static_cast<int>(hidden.size()) + 1;
    net.sizes[0] = stream_.settings.observations;
    for (int l = 1; l < net.layers; ++l) net.sizes[l] = hidden[l - 1];
    net.sizes[net.layers] = outputs;
    net.parameters = 0;
    for (int l = 0; l < net.layers; ++l) net.parameters += (net.sizes[l] + 1) * net.sizes[l + 1];
    net.kappa = kappa;
  }

  void bind(const nb::dict& addresses) {
    const auto at = [&](auto*& pointer, const char* name) {
      const auto address = addresses.contains(name) ? nb::cast<std::uintptr_t>(addresses[name]) : 0;
      pointer = reinterpret_cast<std::remove_reference_t<decltype(pointer)>>(address);
    };
    const auto actions = [&](StreamActions<T>& pair, const char* name) {
      pair = {nullptr, nullptr};
      if (stream_.settings.discrete)
        at(pair.choices, name);
      else
        at(pair.values, name);
    };
    Stream<T>& s = stream_;
    at(s.critic.weights, "critic_weights");
    at(s.critic.traces, "critic_traces");
    at(s.critic.second, "critic_second");
    at(s.actor.weights, "actor_weights");
    at(s.actor.traces, "actor_traces");
    at(s.actor.second, "actor_second");
    at(s.count, "count");
    at(s.learned, "learned");
    at(s.observation_count, "observation_count");
    at(s.observation_mean, "observation_mean");
    at(s.observation_squares, "observation_squares");
    at(s.reward_trace, "reward_trace");
    at(s.reward_count, "reward_count");
    at(s.reward_mean, "reward_mean");
    at(s.reward_squares, "reward_squares");
    at(s.states, "states");
    at(s.following, "following");
    actions(s.chosen, "chosen");
    actions(s.next_chosen, "next_chosen");
    actions(s.out_actions, "out_actions");
    at(s.explored, "explored");
    at(s.next_explored, "next_explored");
    at(s.ready, "ready");
    at(s.in_observations, "in_observations");
    at(s.in_first, "in_first");
    at(s.in_rewards, "in_rewards");
    at(s.in_epsilon, "in_epsilon");
    at(s.in_terminated, "in_terminated");
    at(s.in_truncated, "in_truncated");
    at(s.in_ended_with_first, "in_ended_with_first");
    at(s.in_active, "in_active");
    at(s.in_noise, "in_noise");
    at(s.out_td, "out_td");
  }

  /// Twice: once to count, once to hand out.
  void place_scratch() {
    constexpr long per_line = 64 / sizeof(T);
    long used = 0;
    T* base = nullptr;
    const auto take = [&](long numbers) {
      T* const place = base + used;
      used += (stream_room(numbers) + per_line - 1) / per_line * per_line;
      return place;
    };
    const auto hand_out = [&] {
      used = 0;
      long widest = 1;
      for (StreamNetwork<T>* const net : {&stream_.critic, &stream_.actor}) {
        for (int l = 0; l <= net->layers; ++l) widest = net->sizes[l] > widest ? net->sizes[l] : widest;
        for (StreamSample<T>* const sample : {&net->here, &net->next}) {
          for (int l = 0; l < net->layers; ++l) sample->activations[l] = take(net->sizes[l]);
          for (int l = 0; l + 1 < net->layers; ++l) sample->normal[l] = take(net->sizes[l + 1]);
          sample->inverses = take(net->layers);
          sample->outputs = take(net->sizes[net->layers]);
        }
      }
      stream_.above = take(widest);
      stream_.below = take(widest);
    };
    hand_out();
    scratch_ = std::make_unique<T[]>(used + per_line);  // zeros
    base = scratch_.get() + (64 - reinterpret_cast<std::uintptr_t>(scratch_.get()) % 64) % 64 / sizeof(T);
    hand_out();
  }

  Stream<T> stream_ = {};
  bool backwards_ = true;
  std::unique_ptr<T[]> scratch_;
};

template <class T>
void bind_one(nb::module_& m, const char* name) {
  nb::class_<StreamOf<T>>(m, name, "K streaming agents on memory that the caller keeps alive (stream.py).")
      .def(nb::init<const nb::dict&, long, const nb::dict&>(), nb::arg("settings"), nb::arg("streams"),
           nb::arg("addresses"), "Addresses by name; critic_stride and actor_stride are numbers between streams.")
      .def("run", &StreamOf<T>::run, nb::arg("phases"), "Do these phases for each active stream.");
}

}  // namespace

void bind_stream(nb::module_& m) {
  m.attr("stream_revision") = 1;  // another number wherever the same inputs may give other bits
  bind_one<float>(m, "StreamFloat32");
  bind_one<double>(m, "StreamFloat64");
}

}  // namespace surefoot
