#include "functions/idle_histogram.h"

#include <algorithm>
#include <bit>
#include <cmath>

namespace rekindle::functions {
namespace {

constexpr Micros kMinute = 60'000'000;
constexpr double kHead = 0.05, kTail = 0.99, kMargin = 0.1;
constexpr double kCloseTogether = 0.5;  // tail - head, of the head

}  // namespace

int IdleHistogram::BinOf(Micros idle) {
  uint64_t minutes = idle <= 0 ? 0 : static_cast<uint64_t>(idle / kMinute);
  if (minutes < kLinear) return static_cast<int>(minutes);
  int octave = std::bit_width(minutes) - 5;  // 16..31 minutes: 0
  int bin = kLinear + octave * kPerOctave + static_cast<int>(minutes >> octave) - kLinear;
  return std::min(bin, kBins - 1);
}

Micros IdleHistogram::BinStart(int bin) {
  if (bin < kLinear) return bin * kMinute;
  int octave = (bin - kLinear) / kPerOctave, step = (bin - kLinear) % kPerOctave;
  return static_cast<Micros>(kLinear + step) * (Micros{1} << octave) * kMinute;
}

void IdleHistogram::Record(Micros idle) {
  ++bins_[BinOf(idle)];
  if (++samples_ > kMaxSamples) {
    samples_ = 0;
    for (uint8_t& bin : bins_) samples_ += bin /= 2;
  }
  if (samples_ >= kMinSamples && (++since_predicted_ >= 8 || samples_ < 16)) Predict();
}

void IdleHistogram::Predict() {
  since_predicted_ = 0;
  auto percentile = [&](double share) {
    auto rank = static_cast<uint32_t>(std::ceil(share * samples_));
    uint32_t seen = 0;
    for (int bin = 0; bin < kBins; ++bin) {
      if ((seen += bins_[bin]) >= std::max(rank, 1u)) return bin;
    }
    return kBins - 1;
  };
  int head_bin = percentile(kHead), tail_bin = percentile(kTail);
  Micros head = BinStart(head_bin), tail = BinStart(tail_bin + 1);
  window_.reset();
  if (head < 2 * kMinute || tail_bin == kBins - 1) return;
  if (tail - head > std::max<Micros>(2 * kMinute, std::llround(kCloseTogether * head))) return;
  auto margin = [](Micros time) { return std::max<Micros>(kMinute, std::llround(kMargin * time)); };
  window_ = Window{head - margin(head), tail + margin(tail)};
}

}  // namespace rekindle::functions
