// The device code of the test jobs, as PTX: the driver compiles it for whatever GPU there is, so no toolkit
// is needed. tests/gpu_sim/driver/kernels.cc has the same kernels as host functions. Checked with:
// gpu_vector_job --print-ptx | ptxas -arch sm_90 -o /dev/null -
#pragma once

namespace rekindle::gpu_jobs {

inline constexpr char kKernels[] = R"ptx(
.version 7.0
.target sm_75
.address_size 64

// x = a * x + b
.visible .entry rk_step_u64(.param .u64 rk_x, .param .u64 rk_n, .param .u64 rk_a, .param .u64 rk_b)
{
  .reg .pred %p;
  .reg .b32 %r<4>;
  .reg .b64 %x, %n, %a, %b, %i, %t, %stride, %v;
  ld.param.u64 %x, [rk_x];
  ld.param.u64 %n, [rk_n];
  ld.param.u64 %a, [rk_a];
  ld.param.u64 %b, [rk_b];
  cvta.to.global.u64 %x, %x;
  mov.u32 %r0, %ctaid.x;
  mov.u32 %r1, %ntid.x;
  mov.u32 %r2, %tid.x;
  mov.u32 %r3, %nctaid.x;
  mul.wide.u32 %i, %r0, %r1;
  cvt.u64.u32 %t, %r2;
  add.u64 %i, %i, %t;
  mul.wide.u32 %stride, %r3, %r1;
LOOP:
  setp.ge.u64 %p, %i, %n;
  @%p bra DONE;
  shl.b64 %t, %i, 3;
  add.u64 %t, %x, %t;
  ld.global.u64 %v, [%t];
  mad.lo.u64 %v, %v, %a, %b;
  st.global.u64 [%t], %v;
  add.u64 %i, %i, %stride;
  bra LOOP;
DONE:
  ret;
}

// x = a * x + b, each operation rounded to nearest
.visible .entry rk_step_f32(.param .u64 rk_x, .param .u64 rk_n, .param .f32 rk_a, .param .f32 rk_b)
{
  .reg .pred %p;
  .reg .b32 %r<4>;
  .reg .f32 %a, %b, %v;
  .reg .b64 %x, %n, %i, %t, %stride;
  ld.param.u64 %x, [rk_x];
  ld.param.u64 %n, [rk_n];
  ld.param.f32 %a, [rk_a];
  ld.param.f32 %b, [rk_b];
  cvta.to.global.u64 %x, %x;
  mov.u32 %r0, %ctaid.x;
  mov.u32 %r1, %ntid.x;
  mov.u32 %r2, %tid.x;
  mov.u32 %r3, %nctaid.x;
  mul.wide.u32 %i, %r0, %r1;
  cvt.u64.u32 %t, %r2;
  add.u64 %i, %i, %t;
  mul.wide.u32 %stride, %r3, %r1;
LOOP:
  setp.ge.u64 %p, %i, %n;
  @%p bra DONE;
  shl.b64 %t, %i, 2;
  add.u64 %t, %x, %t;
  ld.global.f32 %v, [%t];
  mul.rn.f32 %v, %a, %v;
  add.rn.f32 %v, %v, %b;
  st.global.f32 [%t], %v;
  add.u64 %i, %i, %stride;
  bra LOOP;
DONE:
  ret;
}

// x[i] = splitmix64 number i of this seed
.visible .entry rk_fill_u64(.param .u64 rk_x, .param .u64 rk_n, .param .u64 rk_seed)
{
  .reg .pred %p;
  .reg .b32 %r<4>;
  .reg .b64 %x, %n, %seed, %i, %t, %stride, %z, %s;
  ld.param.u64 %x, [rk_x];
  ld.param.u64 %n, [rk_n];
  ld.param.u64 %seed, [rk_seed];
  cvta.to.global.u64 %x, %x;
  mov.u32 %r0, %ctaid.x;
  mov.u32 %r1, %ntid.x;
  mov.u32 %r2, %tid.x;
  mov.u32 %r3, %nctaid.x;
  mul.wide.u32 %i, %r0, %r1;
  cvt.u64.u32 %t, %r2;
  add.u64 %i, %i, %t;
  mul.wide.u32 %stride, %r3, %r1;
LOOP:
  setp.ge.u64 %p, %i, %n;
  @%p bra DONE;
  add.u64 %z, %i, 1;
  mad.lo.u64 %z, %z, 0x9e3779b97f4a7c15, %seed;
  shr.u64 %s, %z, 30;
  xor.b64 %z, %z, %s;
  mul.lo.u64 %z, %z, 0xbf58476d1ce4e5b9;
  shr.u64 %s, %z, 27;
  xor.b64 %z, %z, %s;
  mul.lo.u64 %z, %z, 0x94d049bb133111eb;
  shr.u64 %s, %z, 31;
  xor.b64 %z, %z, %s;
  shl.b64 %t, %i, 3;
  add.u64 %t, %x, %t;
  st.global.u64 [%t], %z;
  add.u64 %i, %i, %stride;
  bra LOOP;
DONE:
  ret;
}

// *sum += x[i] * (2 i + 1) over all i
.visible .entry rk_checksum_u64(.param .u64 rk_x, .param .u64 rk_n, .param .u64 rk_sum)
{
  .reg .pred %p;
  .reg .b32 %r<4>;
  .reg .b64 %x, %n, %sum, %i, %t, %stride, %v, %part;
  ld.param.u64 %x, [rk_x];
  ld.param.u64 %n, [rk_n];
  ld.param.u64 %sum, [rk_sum];
  cvta.to.global.u64 %x, %x;
  cvta.to.global.u64 %sum, %sum;
  mov.u32 %r0, %ctaid.x;
  mov.u32 %r1, %ntid.x;
  mov.u32 %r2, %tid.x;
  mov.u32 %r3, %nctaid.x;
  mul.wide.u32 %i, %r0, %r1;
  cvt.u64.u32 %t, %r2;
  add.u64 %i, %i, %t;
  mul.wide.u32 %stride, %r3, %r1;
  mov.u64 %part, 0;
LOOP:
  setp.ge.u64 %p, %i, %n;
  @%p bra DONE;
  shl.b64 %t, %i, 3;
  add.u64 %t, %x, %t;
  ld.global.u64 %v, [%t];
  shl.b64 %t, %i, 1;
  add.u64 %t, %t, 1;
  mad.lo.u64 %part, %v, %t, %part;
  add.u64 %i, %i, %stride;
  bra LOOP;
DONE:
  red.global.add.u64 [%sum], %part;
  ret;
}

// Keeps the device busy for this many nanoseconds.
.visible .entry rk_spin(.param .u64 rk_nanoseconds)
{
  .reg .pred %p;
  .reg .b64 %end, %now;
  ld.param.u64 %end, [rk_nanoseconds];
  mov.u64 %now, %globaltimer;
  add.u64 %end, %end, %now;
LOOP:
  mov.u64 %now, %globaltimer;
  setp.lt.u64 %p, %now, %end;
  @%p bra LOOP;
  ret;
}
)ptx";

}  // namespace rekindle::gpu_jobs
