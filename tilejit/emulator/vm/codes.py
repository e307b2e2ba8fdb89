"""Numbers shared by the decoder and the virtual machine. An instruction is one row of `WIDTH` int64 fields."""
from __future__ import annotations

# -- fields of a row
OP, GUARD, NEG, D, A, B, C, E, SUB, FMT, FLAGS, IMM, TARGET, RECONV, POOL, COUNT = range(16)
WIDTH = 16

# -- operation classes (row[OP])
(INT, FLOAT, CVT, SETP, MOV, PACK, UNPACK, LOAD, STORE, ATOM, BRA, RET, SHFL, VOTE, MATCH, REDUX, ELECT,
 LDMATRIX, STMATRIX, MMA, CARRY, CVTA, MAPA, NOP, TRACED, EXTERNAL, CLOCK, BRX, ACTIVE, TRAP, LOCALADDR,
 ISSPACE, YIELD) = range(33)

# -- integer operations (row[SUB]); row[FMT] is the width in bits
(ADD, SUB_, MUL, MULHI, MULWIDE, MAD, MADHI, MADWIDE, DIV, REM, MIN, MAX, ABS, NEGATE, AND, OR, XOR, NOT,
 CNOT, SHL, SHR, SHF, POPC, CLZ, BFIND, BREV, BFE, BFI, PRMT, LOP3, SAD, SELP, SLCT, DP4A, SZEXT, BMSK,
 COPY, CVTPACK) = range(38)

# -- floating operations
(FADD, FSUB, FMUL, FFMA, FDIV, FRCP, FSQRT, FRSQRT, FSIN, FCOS, FLG2, FEX2, FTANH, FABS, FNEG, FMIN, FMAX,
 FCOPYSIGN, FTESTP) = range(19)

# -- formats of numbers
(F32, F64, F16, BF16, F16X2, BF16X2, TF32, E4M3X2, E5M2X2, U8, U16, U32, U64, S8, S16, S32, S64,
 E4M3, E5M2) = range(19)

# -- rounding; the RxI forms round to an integral value
RN, RZ, RM, RP, RNA, APPROX, NONE, RNI, RZI, RMI, RPI = range(11)

# -- flags
(FTZ, SAT, RELU, NAN, XORSIGN, SIGNED, CLAMP, RIGHT, SATFINITE, NEGATED, RETURNS,
 PACKED) = (1 << i for i in range(12))

# -- comparisons
(EQ, NE, LT, LE, GT, GE, EQU, NEU, LTU, LEU, GTU, GEU, NUM, ISNAN) = range(14)

# -- state spaces
GENERIC, GLOBAL, SHARED, PARAM, LOCAL, CONST = range(6)

# Host addresses are global; the windows of the other spaces lie above them.
SHARED_WINDOW = 1 << 56
PARAM_WINDOW = 2 << 56
LOCAL_WINDOW = 3 << 56
CONST_WINDOW = 4 << 56
OFFSET_MASK = (1 << 56) - 1
#: A shared address is an offset below the rank of its CTA in the cluster, as on the hardware: a CTA's own are
#: shared::cluster addresses, too.
RANK_SHIFT = 24
RANK_MASK = 255

# -- machine state (an int64 array whose slots are values or addresses of arrays)
(ST_CODE, ST_POOL, ST_REGS, ST_NREGS, ST_SHARED, ST_SHARED_STRIDE, ST_SHARED_SIZE, ST_CTAS, ST_WARPS_PER_CTA,
 ST_PARAM, ST_PARAM_SIZE, ST_LOCAL, ST_LOCAL_SIZE, ST_CONST, ST_CONST_SIZE, ST_RANGES, ST_NRANGES,
 ST_SPLITS, ST_FUEL, ST_EXECUTED, ST_TRACE, ST_EVENTS, ST_EVENT_CAPACITY, ST_EVENT_COUNT, ST_FAULT,
 ST_FAULT_LANE, ST_FAULT_ADDRESS, ST_SPLIT, ST_MASK, ST_PC, ST_LIVE, ST_STATES, ST_CLOCK, ST_SCRATCH) = range(34)
ST_SIZE = 40

# -- a split (a group of lanes that run together): fields, and its states
SP_PC, SP_MASK, SP_RECONV, SP_PARENT, SP_CHILDREN, SP_STATE = range(6)
SP_FIELDS = 6
SPLITS = 128
FREE, READY, JOINING, BLOCKED = range(4)

# -- why `run` returned
R_EXTERNAL, R_EXITED, R_FUEL, R_FAULT, R_SWITCH, R_EVENTS, R_TRAP, R_YIELD = range(8)

# -- faults
(FAULT_NONE, FAULT_BOUNDS, FAULT_ALIGN, FAULT_SPACE, FAULT_DIVERGED, FAULT_SHARED_BOUNDS, FAULT_READONLY,
 FAULT_DIVIDE) = range(8)

# -- trace records (one row of EVENT_WIDTH int64 each)
EV_READ, EV_WRITE, EV_ATOMIC, EV_REGISTER, EV_DIVERGED, EV_UNINIT = range(6)
EV_KIND, EV_WARP, EV_PC, EV_SPACE, EV_SIZE, EV_MASK, EV_ADDRESS = range(7)
EVENT_WIDTH = 40

# -- register states (only kept when tracing)
#: TOUCHED: read or written by an ordinary instruction since the warp's last wgmma.fence.
UNINIT, ACC_IN_FLIGHT, A_IN_FLIGHT, TOUCHED = 1, 2, 4, 8
