"""The seven models of gymnasium's planar MuJoCo tasks, version 5.

The numbers are those that MuJoCo 3.17 computes from the model files of gymnasium 1.4: masses and inertias of capsules
of density 1000 (HalfCheetah is rescaled to 14 kg), and mobilities in the initial position. Friction is the larger one
of body and floor, and the margin of a contact is the sum of both margins. Reacher's fingertip is part of its forearm.
"""

from math import pi

from jaxbyz.environments.mujoco.bodies import Fluid, Joint, Limit, Link, Model, Motor, Point, Softness

SOFT = Softness(0.0, 0.8, 0.03)

INVERTED_PENDULUM = Model(
    name="InvertedPendulum-v5",
    time_step=0.02,
    substeps=2,
    implicit_damping=False,
    gravity=(0.0, -9.81),
    slides=(Joint(damping=1.0, limit=Limit(-1.0, 1.0, 0.08367433805859587)),),
    root=Link(
        "cart", (0.0, 0.0), (0.0, 0.0), 10.47197551196598, 0.12671090369478843, None, bar=((-0.1, 0.0), (0.1, 0.0))
    ),
    limbs=(
        (
            Link(
                "pole",
                (0.0, 0.0),
                (0.0005, 0.3),
                5.018591641363306,
                0.18874976687308845,
                Joint(sign=-1.0, damping=1.0, limit=Limit(-pi / 2, pi / 2, 2.023912919848819)),
                bar=((0.001, 0.6), (0.0, 0.0)),
            ),
        ),
    ),
    motors=(Motor(0, 100.0, limit=3.0),),
)

INVERTED_DOUBLE_PENDULUM = Model(
    name="InvertedDoublePendulum-v5",
    time_step=0.01,
    substeps=5,
    implicit_damping=False,
    gravity=(1e-05, -9.81),
    slides=(Joint(damping=0.05, limit=Limit(-1.0, 1.0, 0.08467261918769675, margin=0.01)),),
    root=Link(
        "cart", (0.0, 0.0), (0.0, 0.0), 10.47197551196598, 0.12671090369478843, None, bar=((-0.1, 0.0), (0.1, 0.0))
    ),
    limbs=(
        (
            Link(
                "pole",
                (0.0, 0.0),
                (0.0, 0.3),
                4.1987385815227585,
                0.15497066975016235,
                Joint(sign=-1.0, damping=0.05),
                bar=((0.0, 0.6), (0.0, 0.0)),
            ),
            Link(
                "pole2",
                (0.0, 0.6),
                (0.0, 0.3),
                4.1987385815227585,
                0.15497066975016235,
                Joint(sign=-1.0, damping=0.05),
                bar=((0.0, 0.6), (0.0, 0.0)),
            ),
        ),
    ),
    motors=(Motor(0, 500.0),),
)

SWIMMER = Model(
    name="Swimmer-v5",
    time_step=0.01,
    substeps=4,
    implicit_damping=False,
    gravity=(0.0, 0.0),
    slides=(
        Joint(armature=0.1),
        Joint(armature=0.1),
    ),
    root=Link(
        "torso",
        (0.0, 0.0),
        (1.0, 0.0),
        35.604716740684324,
        3.9175660390264717,
        Joint(armature=0.1),
        bar=((0.5, 0.0), (1.5, 0.0)),
    ),
    limbs=(
        (
            Link(
                "mid",
                (0.5, 0.0),
                (-0.5, 0.0),
                35.604716740684324,
                3.9175660390264717,
                Joint(armature=0.1, limit=Limit(-5 * pi / 9, 5 * pi / 9, 0.38529334162134676)),
                bar=((-1.0, 0.0), (0.0, 0.0)),
            ),
            Link(
                "back",
                (-1.0, 0.0),
                (-0.5, 0.0),
                35.604716740684324,
                3.9175660390264717,
                Joint(armature=0.1, limit=Limit(-5 * pi / 9, 5 * pi / 9, 0.3933336741383495)),
                bar=((-1.0, 0.0), (0.0, 0.0)),
            ),
        ),
    ),
    motors=(
        Motor(3, 150.0),
        Motor(4, 150.0),
    ),
    fluid=Fluid(0.4645027526229677, 58.58823529411759, 388.94950348724655, 0.0376098296466958, 17.8396291144307),
)

HOPPER = Model(
    name="Hopper-v5",
    time_step=0.002,
    substeps=4,
    implicit_damping=False,
    gravity=(0.0, -9.81),
    slides=(
        Joint(),
        Joint(),
    ),
    root=Link(
        "torso",
        (0.0, 0.0),
        (0.0, 0.0),
        3.6651914291880923,
        0.069245938072875,
        Joint(sign=-1.0),
        points=(
            Point((0.0, 0.2), 0.05, 1.0, reachable=False),
            Point((0.0, -0.2), 0.05, 1.0, reachable=False),
        ),
        mobility=0.08492239638897524,
        bar=((0.0, -0.2), (0.0, 0.2)),
    ),
    limbs=(
        (
            Link(
                "thigh",
                (0.0, -0.2),
                (0.0, -0.225),
                4.057890510886818,
                0.09329875682692194,
                Joint(damping=1.0, armature=1.0, limit=Limit(-5 * pi / 6, 0.0, 0.9173573040079763)),
                points=(
                    Point((0.0, 0.0), 0.05, 1.0, reachable=False),
                    Point((0.0, -0.45), 0.05, 1.0),
                ),
                mobility=0.051923310146107036,
                bar=((0.0, -0.45), (0.0, 0.0)),
            ),
            Link(
                "leg",
                (0.0, -0.45),
                (0.0, -0.25),
                2.7813566959781637,
                0.07230254017320971,
                Joint(damping=1.0, armature=1.0, limit=Limit(-5 * pi / 6, 0.0, 0.8423092317158408)),
                points=(
                    Point((0.0, 0.0), 0.04, 1.0),
                    Point((0.0, -0.5), 0.04, 1.0),
                ),
                mobility=0.04959511864425975,
                bar=((0.0, -0.5), (0.0, 0.0)),
            ),
            Link(
                "foot",
                (0.0, -0.5),
                (0.065, 0.0),
                5.315574769873931,
                0.1035230805900054,
                Joint(damping=1.0, armature=1.0, limit=Limit(-pi / 4, pi / 4, 0.9000381439194955)),
                points=(
                    Point((-0.13, 0.0), 0.06, 2.0),
                    Point((0.26, 0.0), 0.06, 2.0),
                ),
                mobility=0.06690271076821869,
                bar=((0.26, 0.0), (-0.13, 0.0)),
            ),
        ),
    ),
    motors=(
        Motor(3, 200.0),
        Motor(4, 200.0),
        Motor(5, 200.0),
    ),
    contact_margin=0.002,
    contact_softness=Softness(0.8, 0.8, 0.01),
)

WALKER2D = Model(
    name="Walker2d-v5",
    time_step=0.002,
    substeps=4,
    implicit_damping=False,
    gravity=(0.0, -9.81),
    slides=(
        Joint(),
        Joint(),
    ),
    root=Link(
        "torso",
        (0.0, 0.0),
        (0.0, 0.0),
        3.6651914291880923,
        0.069245938072875,
        Joint(sign=-1.0),
        points=(
            Point((0.0, 0.2), 0.05, 0.9, reachable=False),
            Point((0.0, -0.2), 0.05, 0.9, reachable=False),
        ),
        mobility=0.0853164980232042,
        bar=((0.0, -0.2), (0.0, 0.2)),
    ),
    limbs=(
        (
            Link(
                "thigh",
                (0.0, -0.2),
                (0.0, -0.225),
                4.057890510886818,
                0.09329875682692194,
                Joint(damping=0.1, armature=0.01, limit=Limit(-5 * pi / 6, 0.0, 12.106152843486317)),
                points=(
                    Point((0.0, 0.0), 0.05, 0.9, reachable=False),
                    Point((0.0, -0.45), 0.05, 0.9),
                ),
                mobility=0.06051637875212593,
                bar=((0.0, -0.45), (0.0, 0.0)),
            ),
            Link(
                "leg",
                (0.0, -0.45),
                (0.0, -0.25),
                2.7813566959781637,
                0.07230254017320971,
                Joint(damping=0.1, armature=0.01, limit=Limit(-5 * pi / 6, 0.0, 9.595294937183608)),
                points=(
                    Point((0.0, 0.0), 0.04, 0.9),
                    Point((0.0, -0.5), 0.04, 0.9),
                ),
                mobility=0.06299719488697496,
                bar=((0.0, -0.5), (0.0, 0.0)),
            ),
            Link(
                "foot",
                (0.0, -0.5),
                (0.1, 0.0),
                3.1667253948185117,
                0.02399774663482943,
                Joint(damping=0.1, armature=0.01, limit=Limit(-pi / 4, pi / 4, 18.21142212360485)),
                points=(
                    Point((0.0, 0.0), 0.06, 1.9),
                    Point((0.2, 0.0), 0.06, 1.9),
                ),
                mobility=0.13474576502547686,
                bar=((0.2, 0.0), (0.0, 0.0)),
            ),
        ),
        (
            Link(
                "thigh_left",
                (0.0, -0.2),
                (0.0, -0.225),
                4.057890510886818,
                0.09329875682692194,
                Joint(damping=0.1, armature=0.01, limit=Limit(-5 * pi / 6, 0.0, 12.106152843486317)),
                points=(
                    Point((0.0, 0.0), 0.05, 0.9, reachable=False),
                    Point((0.0, -0.45), 0.05, 0.9),
                ),
                mobility=0.06051637875212593,
                bar=((0.0, -0.45), (0.0, 0.0)),
            ),
            Link(
                "leg_left",
                (0.0, -0.45),
                (0.0, -0.25),
                2.7813566959781637,
                0.07230254017320971,
                Joint(damping=0.1, armature=0.01, limit=Limit(-5 * pi / 6, 0.0, 9.595294937183608)),
                points=(
                    Point((0.0, 0.0), 0.04, 0.9),
                    Point((0.0, -0.5), 0.04, 0.9),
                ),
                mobility=0.06299719488697496,
                bar=((0.0, -0.5), (0.0, 0.0)),
            ),
            Link(
                "foot_left",
                (0.0, -0.5),
                (0.1, 0.0),
                3.1667253948185117,
                0.02399774663482943,
                Joint(damping=0.1, armature=0.01, limit=Limit(-pi / 4, pi / 4, 18.21142212360485)),
                points=(
                    Point((0.0, 0.0), 0.06, 1.9),
                    Point((0.2, 0.0), 0.06, 1.9),
                ),
                mobility=0.13474576502547686,
                bar=((0.2, 0.0), (0.0, 0.0)),
            ),
        ),
    ),
    motors=(
        Motor(3, 100.0),
        Motor(4, 100.0),
        Motor(5, 100.0),
        Motor(6, 100.0),
        Motor(7, 100.0),
        Motor(8, 100.0),
    ),
)

HALF_CHEETAH = Model(
    name="HalfCheetah-v5",
    time_step=0.01,
    substeps=5,
    implicit_damping=True,
    gravity=(0.0, -9.81),
    slides=(
        Joint(),
        Joint(),
    ),
    root=Link(
        "torso",
        (0.0, 0.0),
        (0.15238987816307403, 0.025398313027179008),
        6.25020920502092,
        0.897117688111749,
        Joint(sign=-1.0),
        points=(
            Point((-0.5, 0.0), 0.046, 0.4),
            Point((0.5, 0.0), 0.046, 0.4),
            Point((0.7146493405538257, 0.19672398208600017), 0.046, 0.4),
            Point((0.4853506594461742, 0.0032760179139998263), 0.046, 0.4),
        ),
        mobility=0.06415751945610272,
        bar=((0.5, 0.0), (-0.5, 0.0)),
    ),
    limbs=(
        (
            Link(
                "bthigh",
                (-0.5, 0.0),
                (0.1, -0.13),
                1.5435146443514645,
                0.01684433958158996,
                Joint(
                    sign=-1.0,
                    damping=6.0,
                    stiffness=240.0,
                    armature=0.1,
                    limit=Limit(-0.52, 1.05, 2.729788644884893, softness=SOFT),
                ),
                points=(
                    Point((0.18871939418669426, -0.2446903182275904), 0.046, 0.4),
                    Point((0.011280605813305769, -0.015309681772409586), 0.046, 0.4),
                ),
                mobility=0.09691101560963138,
                bar=((0.011281, -0.01531), (0.188719, -0.24469)),
            ),
            Link(
                "bshin",
                (0.16, -0.25),
                (-0.14, -0.07),
                1.5874476987447697,
                0.018267419079497912,
                Joint(
                    sign=-1.0,
                    damping=4.5,
                    stiffness=180.0,
                    armature=0.1,
                    limit=Limit(-0.785, 0.785, 5.893248984162904, softness=SOFT),
                ),
                points=(
                    Point((-0.27446086117273405, -0.13648516234985636), 0.046, 0.4),
                    Point((-0.005539138827266005, -0.003514837650143668), 0.046, 0.4),
                ),
                mobility=0.12720922534654552,
                bar=((-0.005539, -0.003515), (-0.274461, -0.136485)),
            ),
            Link(
                "bfoot",
                (-0.28, -0.14),
                (0.03, -0.097),
                1.0953974895397491,
                0.0063524232635983275,
                Joint(
                    sign=-1.0,
                    damping=3.0,
                    stiffness=120.0,
                    armature=0.1,
                    limit=Limit(-0.4, 0.785, 8.894877004054676, softness=SOFT),
                ),
                points=(
                    Point((0.004927244951249875, -0.006405535741606308), 0.046, 0.4),
                    Point((0.05507275504875012, -0.1875944642583937), 0.046, 0.4),
                ),
                mobility=0.24374928349017175,
                bar=((0.055073, -0.187594), (0.004927, -0.006406)),
            ),
        ),
        (
            Link(
                "fthigh",
                (0.5, 0.0),
                (-0.07, -0.12),
                1.4380753138075317,
                0.013739643347280341,
                Joint(
                    sign=-1.0,
                    damping=4.5,
                    stiffness=180.0,
                    armature=0.1,
                    limit=Limit(-1.0, 0.7, 3.0813926054768768, softness=SOFT),
                ),
                points=(
                    Point((-0.003914941666783009, -0.004580049102872574), 0.046, 0.4),
                    Point((-0.136085058333217, -0.23541995089712742), 0.046, 0.4),
                ),
                mobility=0.0814837948136707,
                bar=((-0.136085, -0.23542), (-0.003915, -0.00458)),
            ),
            Link(
                "fshin",
                (-0.14, -0.24),
                (0.065, -0.09),
                1.200836820083682,
                0.008222108619246861,
                Joint(
                    sign=-1.0,
                    damping=3.0,
                    stiffness=120.0,
                    armature=0.1,
                    limit=Limit(-1.2, 0.87, 6.882795962275771, softness=SOFT),
                ),
                points=(
                    Point((0.005147897820126264, -0.0025144248195741042), 0.046, 0.4),
                    Point((0.12485210217987375, -0.1774855751804259), 0.046, 0.4),
                ),
                mobility=0.1319968179007737,
                bar=((0.124852, -0.177486), (0.005148, -0.002514)),
            ),
            Link(
                "ffoot",
                (0.13, -0.18),
                (0.045, -0.07),
                0.8845188284518829,
                0.003529109456066946,
                Joint(
                    sign=-1.0,
                    damping=1.5,
                    stiffness=60.0,
                    armature=0.1,
                    limit=Limit(-0.5, 0.5, 9.468134962769764, softness=SOFT),
                ),
                points=(
                    Point((0.005475026862347528, -0.012226506956322526), 0.046, 0.4),
                    Point((0.08452497313765248, -0.1277734930436775), 0.046, 0.4),
                ),
                mobility=0.2661441029233887,
                bar=((0.084525, -0.127773), (0.005475, -0.012227)),
            ),
        ),
    ),
    motors=(
        Motor(3, 120.0),
        Motor(4, 90.0),
        Motor(5, 60.0),
        Motor(6, 120.0),
        Motor(7, 60.0),
        Motor(8, 30.0),
    ),
    height=0.7,
    contact_softness=Softness(0.0, 0.8, 0.01),
)

REACHER = Model(
    name="Reacher-v5",
    time_step=0.01,
    substeps=2,
    implicit_damping=False,
    gravity=(0.0, 0.0),
    slides=(),
    root=Link(
        "body0",
        (0.0, 0.0),
        (0.05, 0.0),
        0.03560471674068432,
        3.9175660390264734e-05,
        Joint(damping=1.0, armature=1.0),
        bar=((0.1, 0.0), (0.0, 0.0)),
    ),
    limbs=(
        (
            Link(
                "body1",
                (0.1, 0.0),
                (0.05631578947368421, 0.0),
                0.039793506945470715,
                5.283552571071551e-05,
                Joint(damping=1.0, armature=1.0, limit=Limit(-3.0, 3.0, 0.9998211549602818)),
                bar=((0.0, 0.0), (0.11, 0.0)),
            ),
        ),
    ),
    motors=(
        Motor(0, 200.0),
        Motor(1, 200.0),
    ),
)
