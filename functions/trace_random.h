// Random numbers that are the same on every machine and need no state: SplitMix64 (Steele, Lea, Flood: "Fast
// splittable pseudorandom number generators", OOPSLA 2014).
#pragma once

#include <cmath>
#include <cstdint>

namespace rekindle::functions {

inline uint64_t Mix(uint64_t x) {
  x += 0x9e3779b97f4a7c15;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9;
  x = (x ^ (x >> 27)) * 0x94d049bb133111eb;
  return x ^ (x >> 31);
}
inline uint64_t Mix(uint64_t a, uint64_t b) { return Mix(Mix(a) ^ (b * 0xd6e8feb86659fd93)); }
inline double UnitInterval(uint64_t bits) { return static_cast<double>(bits >> 11) * 0x1p-53; }  // [0, 1)
// Nearly normal, mean 0, variance 1: the sum of four uniform numbers.
inline double RoughNormal(uint64_t bits) {
  uint64_t sum = (bits & 0xffff) + (bits >> 16 & 0xffff) + (bits >> 32 & 0xffff) + (bits >> 48);
  return (static_cast<double>(sum) / 65535 - 2) * 1.7320508075688772;
}

// A sequence of them.
class Random {
 public:
  explicit Random(uint64_t seed) : state_(seed) {}
  double Uniform() { return UnitInterval(Next()); }
  double Exponential() { return -std::log1p(-Uniform()); }
  double Normal() { return std::sqrt(2 * Exponential()) * std::cos(2 * M_PI * Uniform()); }
  uint64_t Poisson(double mean) {
    if (mean <= 0) return 0;
    if (mean > 60) return static_cast<uint64_t>(std::fmax(0, std::round(mean + std::sqrt(mean) * Normal())));
    double limit = std::exp(-mean), product = Uniform();
    uint64_t count = 0;
    while (product > limit) {
      product *= Uniform();
      ++count;
    }
    return count;
  }

 private:
  uint64_t Next() { return Mix(state_++); }
  uint64_t state_;
};

}  // namespace rekindle::functions
